// Fills 48 MiB in small blocks and 16 MiB in one, on ordinary pages, prints `ready` and waits for a line. Then checks
// that the contents are unchanged, while a thread keeps writing to a part of the memory. With an argument it disables
// transparent huge pages for itself (PR_SET_THP_DISABLE), and checks afterwards that this setting is unchanged.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { COUNT = 48 << 10, SIZE = 1000, LARGE = 16 << 20 };

static volatile int ended;
static unsigned char *blocks[COUNT];

static void *write_on(void *argument) {
    while (!ended)
        for (int i = 0; i < COUNT; i += 7)
            blocks[i][0]++;
    return argument;
}

int main(int count, char **words) {
    (void)words;
    pthread_t thread;
    if (count > 1 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) return 3;
    unsigned char *large = malloc(LARGE);
    memset(large, 7, LARGE);
    for (int i = 0; i < COUNT; i++)
        memset(blocks[i] = malloc(SIZE), i, SIZE);
    pthread_create(&thread, NULL, write_on, NULL);
    printf("ready\n");
    fflush(stdout);
    getchar();
    ended = 1;
    pthread_join(thread, NULL);
    for (int i = 0; i < LARGE; i++)
        if (large[i] != 7)
            return 1;
    for (int i = 0; i < COUNT; i++)
        for (int at = i % 7 ? 0 : 1; at < SIZE; at++)
            if (blocks[i][at] != (unsigned char)i)
                return 2;
    return prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == count - 1 ? 0 : 4;
}
