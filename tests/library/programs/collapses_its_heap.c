// After a call the program's heap is on transparent huge pages, although another thread writes to it; all contents are
// unchanged. A second call finds nothing to do.
//
// link: shared archive static
// needs: thp
#include "support.h"
#include <pthread.h>

enum { BLOCKS = 48 << 10, SIZE = 1000, LARGE = 16 << 20 };

static volatile int ended;
static unsigned char *blocks[BLOCKS];

static void *write_on(void *argument)
{
    while (!ended)
        for (int index = 0; index < BLOCKS; index += 7) blocks[index][0]++;
    return argument;
}

int main(void)
{
    pthread_t thread;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    unsigned char *large = malloc(LARGE);
    memset(large, 7, LARGE);
    for (int index = 0; index < BLOCKS; index++) memset(blocks[index] = malloc(SIZE), index, SIZE);
    CHECK(pthread_create(&thread, NULL, write_on, NULL) == 0);
    CHECK(pagelift_collapse_heap(&report) == PAGELIFT_OK);
    CHECK(report.covered_bytes >= 56u << 20 && report.thp_bytes == report.covered_bytes);
    CHECK(huge_bytes(large, LARGE, NULL) >= LARGE - (4u << 20));
    ended = 1;
    pthread_join(thread, NULL);
    for (int at = 0; at < LARGE; at++) CHECK(large[at] == 7);
    for (int index = 0; index < BLOCKS; index++)
        for (int at = index % 7 ? 0 : 1; at < SIZE; at++) CHECK(blocks[index][at] == (unsigned char)index);
    CHECK(pagelift_collapse_heap(&report) == PAGELIFT_NOTHING);
    CHECK(pagelift_collapse_heap(NULL) == PAGELIFT_NOTHING);
    puts("ok");
    return 0;
}
