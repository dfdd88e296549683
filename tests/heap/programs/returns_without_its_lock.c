// Frees a block whose memory is returned at once. The heap calls an observer in this program when it has taken a lock: at
// the last time in this call, the memory is gone already. Meanwhile another thread takes and frees blocks of all sizes, and
// children are forked which do so.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -ldl -lpthread
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, LARGE = 160 * MIB, FORKS = 8, LOCKED = 0 };

static char *block;
/* GCC takes it that free calls no function of this file. */
static volatile int locks, resident_at_lock, is_under_way;

/* The block is still mapped: kept for another one. */
static int is_resident(char *page) {
    unsigned char answer = 0;
    return mincore((void *)((unsigned long)page & -(unsigned long)sysconf(_SC_PAGESIZE)), 1, &answer) == 0 && answer & 1;
}

static void observe(int moment) {
    if (moment == LOCKED && is_under_way) {
        locks++;
        resident_at_lock = is_resident(block) || is_resident(block + LARGE - 1);
    }
}

static int uses_blocks(void) {
    for (size_t size = 9 * MIB; size <= 2 * (size_t)LARGE; size *= 2) {
        char *own = calloc(1, size);
        if (!own || own[0] || own[size / 2] || own[size - 1])
            return 1;
        own[0] = own[size / 2] = own[size - 1] = 1;
        /* A child that is forked while another thread frees such a block must not be given it as it is. */
        char *middle = own + size / 2 + (-(unsigned long)(own + size / 2) & (2 * MIB - 1));
        if (size > 128 * MIB && mprotect(middle, 32 * MIB, PROT_NONE))
            return 1;
        free(own);
    }
    return 0;
}

static int is_done;

static void *goes_on(void *unused) {
    while (!__atomic_load_n(&is_done, __ATOMIC_ACQUIRE))
        if (uses_blocks())
            _exit(1);
    return unused;
}

static int forks(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, goes_on, NULL);
    int failed = 0;
    for (int i = 0; i < FORKS; i++) {
        if (fork() == 0)
            _exit(uses_blocks());
        int status;
        wait(&status);
        failed |= status;
    }
    __atomic_store_n(&is_done, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return failed;
}

int main(void) {
    void (**observer)(int) = (void (**)(int))dlsym(RTLD_DEFAULT, "pagelift_heap_observer");
    if (!observer)
        return fputs("the heap is not there\n", stderr), 1;
    block = malloc(LARGE);
    memset(block, 1, LARGE);
    *observer = observe;
    is_under_way = 1;
    free(block);
    is_under_way = 0;
    *observer = NULL;
    if (locks == 0 || resident_at_lock) {
        fprintf(stderr, "the memory was resident when the last of %d locks was taken\n", locks);
        return 1;
    }
    return forks() ? (fputs("a child has failed\n", stderr), 1) : 0;
}
