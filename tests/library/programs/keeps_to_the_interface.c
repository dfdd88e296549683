// Options and reports of other sizes, undefined values, NULL everywhere, and a logger that calls the library.
//
// link: shared archive
// needs: thp
#include "support.h"

static int lines, busy;
static void calls_back(const char *line, void *context)
{
    (void)line;
    CHECK(context == &lines);
    lines++;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    busy += pagelift_query(&report) == PAGELIFT_BUSY;
}

int main(void)
{
    struct {
        pagelift_options known;
        char future[64];
    } newer;
    pagelift_options_init(&newer.known, sizeof newer);
    CHECK(newer.known.size == sizeof newer && newer.future[63] == 0);
    newer.known.pages = PAGELIFT_PAGES_THP;
    newer.known.logger = calls_back;
    newer.known.context = &lines;
    struct {
        size_t size;
        uint64_t considered;
        uint64_t untouched;
    } older = { 2 * sizeof(size_t), 0, 42 };
    int result = pagelift_lift(&newer.known, (pagelift_report *)&older);
    CHECK(result == PAGELIFT_OK || result == PAGELIFT_PARTIAL);
    CHECK(older.considered > 20 << 20 && older.untouched == 42 && lines > 1 && busy == 0);
    check_all();

    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = 9;
    CHECK(pagelift_lift(&options, NULL) == PAGELIFT_INVALID);
    options.pages = 0;
    options.objects = "a,,b";
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    CHECK(pagelift_lift(&options, &report) == PAGELIFT_INVALID && strstr(report.message, "empty pattern"));
    options.objects = NULL;
    options.page_size = 12345;
    CHECK(pagelift_lift(&options, NULL) == PAGELIFT_INVALID);
    options.page_size = 0;
    options.numa = "node=x";
    CHECK(pagelift_lift(&options, &report) == PAGELIFT_INVALID && strstr(report.message, "numa: found `node=x`, needed local"));
    // A node that no machine has: nothing is lifted that needs a placement.
    options.numa = "node=1000";
    pagelift_lift(&options, &report);
    CHECK(report.file_bytes == 0 && report.hugetlb_bytes == 0);
    // A program that was built before the field existed has other data after its options.
    options.size = offsetof(pagelift_options, numa);
    options.numa = (const char *)1;
    result = pagelift_lift(&options, &report);
    CHECK(result != PAGELIFT_INVALID);
    options.numa = NULL;
    options.size = 3;
    CHECK(pagelift_lift(&options, NULL) == PAGELIFT_INVALID);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    CHECK(pagelift_lift(NULL, NULL) >= 0);
    CHECK(pagelift_query(NULL) == PAGELIFT_OK);
    for (int code = -9; code < 9; code++) CHECK(pagelift_error_text(code)[0]);
    CHECK(strcmp(pagelift_error_text(PAGELIFT_OK), pagelift_error_text(PAGELIFT_BUSY)));
    CHECK(pagelift_version()[0]);
    check_all();
    puts("ok");
    return 0;
}
