// Code, constants and data of a program move to pool pages of 2 MiB, whatever the machine's default size is, and back:
// their contents are the same at each step.
//
// link: archive
// needs: pool 64M
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 9000000
#include "pagelift.h"
#include "ranges.h"

int main(void)
{
    fill_bss();
    pagelift_options options;
    pagelift_options_init(&options, sizeof options);
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.writable_pages = PAGELIFT_WRITABLE_HUGETLB;
    options.page_size = 2 << 20;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int lifted = pagelift_lift(&options, &report);
    check_ranges(0);
    add_to_ranges(5);
    check_ranges(5);
    pagelift_report after = PAGELIFT_REPORT_EMPTY;
    int restored = pagelift_restore(NULL, &after);
    check_ranges(5);
    if (lifted < 0 || restored != PAGELIFT_OK || report.hugetlb_bytes < 18 << 20)
        return printf("lift %d, restore %d, %lu bytes\n", lifted, restored, (unsigned long)report.hugetlb_bytes) > 0;
    puts("ok");
    return 0;
}
