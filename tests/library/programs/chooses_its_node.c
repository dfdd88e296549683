// The pages of a lift are on the node that the options name; a node that may not be used is refused with its reason.
//
// link: shared archive
// needs: thp
#include "support.h"
#include <sys/syscall.h>

// The node of a page, by move_pages(2) without nodes, which moves nothing.
static int node_of(const void *address)
{
    void *page = (void *)((uintptr_t)address & ~4095UL);
    int node = -1000;
    CHECK(syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0) == 0);
    return node;
}

int main(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    options.objects = "exe";
    options.logger = print_line;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    options.numa = "node=1000";
    CHECK(pagelift_lift(&options, &report) == PAGELIFT_NOTHING && report.covered_bytes == 0);
    check_all();

    int nodes = access("/sys/devices/system/node/node1", F_OK) ? 1 : 2;
    char name[] = "node=0";
    name[5] = '0' + nodes - 1;
    options.numa = name;
    int result = pagelift_lift(&options, &report);
    CHECK(result == PAGELIFT_OK || result == PAGELIFT_PARTIAL);
    CHECK(report.thp_bytes >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    CHECK(node_of(big_code + (4 << 20)) == nodes - 1);
    CHECK(node_of((const char *)big_constants + (3 << 20)) == nodes - 1);
    check_all();
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    puts("ok");
    return 0;
}
