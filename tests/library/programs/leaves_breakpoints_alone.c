// A huge page of code with a breakpoint keeps its file mapping, which the breakpoint's owner relies on. All other code
// is lifted, and a restore keeps the breakpoint too.
//
// link: shared archive
// needs: thp
#include "support.h"

#if defined(__aarch64__)
static const unsigned char breakpoint[] = {0, 0, 0x20, 0xd4};
#else
static const unsigned char breakpoint[] = {0xcc};
#endif

int main(void)
{
    /* In the middle, in the first instruction of a function that is not called while the breakpoint is set. */
    const char *place = (const char *)big_code + (size_t)FUNCTIONS / 2 * STRIDE;
    unsigned char before[sizeof breakpoint];
    int memory = open("/proc/self/mem", O_RDWR);
    memcpy(before, place, sizeof before);
    CHECK(memory >= 0 && pwrite(memory, breakpoint, sizeof breakpoint, (off_t)(uintptr_t)place) == sizeof breakpoint);

    pagelift_options options;
    pagelift_options_init(&options, sizeof options);
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "exe";
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    CHECK(pagelift_lift(&options, &report) >= 0);
    /* The code may continue after the functions, so its lifted length depends on the base; the breakpoint's page does
       not. */
    size_t all = whole_pages(big_code, (size_t)FUNCTIONS * STRIDE);
    const char *own = (const char *)((uintptr_t)place / huge_page() * huge_page());
    CHECK(huge_bytes(own, huge_page(), NULL) == 0);
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= all - huge_page() && all > huge_page());
    CHECK(memcmp(place, breakpoint, sizeof breakpoint) == 0);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    CHECK(memcmp(place, breakpoint, sizeof breakpoint) == 0);

    /* The breakpoint is removed from the right memory. */
    CHECK(pwrite(memory, before, sizeof before, (off_t)(uintptr_t)place) == sizeof before);
    close(memory);
    check_all();
    check_data(0);
    puts("ok");
    return 0;
}
