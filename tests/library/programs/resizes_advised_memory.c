// Memory that begins and ends inside a huge page stays one mapping after a call that advises the whole mapping: mremap can
// make the memory larger.
//
// link: shared archive static
// needs: thp
#include "support.h"

// Memory between other mappings, a base page behind a multiple of the huge page.
static unsigned char *map(size_t length)
{
    size_t huge = huge_page();
    char *room = mmap(NULL, length + 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    char *at = (char *)(((uintptr_t)room + huge - 1) / huge * huge) + sysconf(_SC_PAGESIZE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(at, length, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
    memset(at, 7, length);
    return (unsigned char *)at;
}

int main(void)
{
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    size_t huge = huge_page(), length = 3 * huge;
    unsigned char *whole = map(length);
    // The last page belongs to the range by its first byte.
    int result = pagelift_advise(whole, length - sysconf(_SC_PAGESIZE) + 1, &report);
    CHECK(result != PAGELIFT_INVALID && report.considered_bytes == 2 * huge);
    unsigned char *moved = mremap(whole, length, 2 * length, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    for (size_t at = 0; at < length; at++) CHECK(moved[at] == 7);
    puts("ok");
    return 0;
}
