// If the pool is empty, nothing is changed, and the report names what was found, what was needed and the command.
//
// link: shared archive
// needs: pool 0
#include "support.h"

int main(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int mappings = count_mappings();
    pagelift_lift(NULL, NULL);
    pagelift_restore(NULL, NULL);
    mappings = count_mappings();
    CHECK(pagelift_lift(&options, &report) == PAGELIFT_NOTHING);
    CHECK(strstr(report.message, "nothing lifted") && strstr(report.message, "pool reserve"));
    CHECK(count_mappings() == mappings && report.covered_bytes == 0 && report.refused_ranges > 0);
    check_all();
    puts("ok");
    return 0;
}
