// Code, constants, data and bss are on pool pages after a lift; contents, protections and descriptors are unchanged,
// and nothing is lifted twice.
//
// link: shared archive static musl musl-static
// needs: pool 64M
#include "support.h"

int main(void)
{
    pagelift_options options;
    pagelift_options_init(&options, sizeof options);
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.logger = print_line;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    memset(big_bss, 7, BSS_BYTES);
    int descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    int result = pagelift_lift(&options, &report);
    CHECK(result == PAGELIFT_OK || result == PAGELIFT_PARTIAL);
    CHECK(count_entries("/proc/self/fd") == descriptors && count_entries("/proc/self/task") == threads);
    check_all();
    check_data(0);
    for (int index = 0; index < BSS_BYTES; index++) CHECK(big_bss[index] == 7);
    size_t pool;
    huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, &pool);
    CHECK(pool >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    huge_bytes(big_constants, sizeof big_constants, &pool);
    CHECK(pool >= whole_pages(big_constants, sizeof big_constants));
    CHECK(huge_bytes(big_data, sizeof big_data, NULL) >= whole_pages(big_data, sizeof big_data));
    CHECK(huge_bytes(big_bss, sizeof big_bss, NULL) >= whole_pages(big_bss, sizeof big_bss));
    CHECK(report.covered_bytes >= 16 << 20 && report.hugetlb_bytes > 0 && report.thp_bytes > 0);
    CHECK(report.covered_bytes == report.hugetlb_bytes + report.thp_bytes + report.file_bytes);
    pagelift_report now = PAGELIFT_REPORT_EMPTY;
    CHECK(pagelift_query(&now) == PAGELIFT_OK);
    CHECK(now.hugetlb_bytes == report.hugetlb_bytes && now.lifted_ranges > 0);

    long free = free_pool_pages();
    CHECK(pagelift_lift(&options, &report) <= PAGELIFT_PARTIAL);
    CHECK(free_pool_pages() == free);
    check_all();
    puts("ok");
    return 0;
}
