// Other threads constantly write to pool pages and ordinary pages in turn, directly and by system calls; the pool is
// empty. Every child sees the memory of a single moment, as after any fork, and no write fails.
//
// link: shared
// needs: pool 64M
// needs: userfaultfd
#include "fork.h"

static volatile int stop;
// A step of a writer changes a word of data, one of the heap, one of bss, and one of the heap.
static uint64_t *heap;

static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static uint64_t get(uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void *count(void *argument)
{
    uintptr_t own = (uintptr_t)argument;
    uint64_t *data = &big_data[own * 1000], *bss = (uint64_t *)(big_bss + (4 << 20) + own * 65536);
    for (uint64_t step = 1; !stop; step++) {
        put(data, step);
        put(&heap[2 * own], step);
        put(bss, step);
        put(&heap[2 * own + 1], step);
    }
    return NULL;
}

static void *fill(void *argument)
{
    (void)argument;
    int zeros = open("/dev/zero", O_RDONLY);
    for (; !stop;) {
        ssize_t got = read(zeros, big_bss + (2 << 20) + 512 * 1024, 65536);
        if (got != 65536) fail("read gave %zd, %s", got, strerror(errno));
    }
    return NULL;
}

// True if the first word equals the second, or is one step ahead.
static int in_order(uint64_t first, uint64_t second) { return first == second || first == second + 1; }

int main(void)
{
    heap = calloc(64, sizeof *heap);
    lift_writable();
    size_t before, after;
    huge_bytes(big_data, sizeof big_data, &before);
    for (int index = 0; index < 3; index++) {
        big_data[index * 1000] = 0;
        memset(big_bss + (4 << 20) + index * 65536, 0, 8);
    }
    pthread_t threads[4];
    for (uintptr_t index = 0; index < 3; index++) pthread_create(&threads[index], NULL, count, (void *)index);
    pthread_create(&threads[3], NULL, fill, NULL);
    double longest = 0;
    for (int round = 0; round < 300; round++) {
        double start = seconds();
        pid_t child = fork();
        if (!child) {
            for (int index = 0; index < 3; index++) {
                uint64_t words[] = { get(&big_data[index * 1000]), get(&heap[2 * index]),
                                     get((uint64_t *)(big_bss + (4 << 20) + index * 65536)), get(&heap[2 * index + 1]) };
                for (int word = 0; word < 3; word++)
                    if (!in_order(words[word], words[word + 1]))
                        fail("writer %d: %lu %lu %lu %lu", index, words[0], words[1], words[2], words[3]);
                if (words[0] != words[3] && words[0] != words[3] + 1) _exit(2);
            }
            memset(big_bss, 9, BSS_BYTES);
            _exit(5);
        }
        if (seconds() - start > longest) longest = seconds() - start;
        expect_exit(child, 5);
    }
    stop = 1;
    for (int index = 0; index < 4; index++) pthread_join(threads[index], NULL);
    huge_bytes(big_data, sizeof big_data, &after);
    CHECK(before == after && before >= 4 << 20);
    for (uint64_t index = 3000; index < WORDS; index++) CHECK(big_data[index] == index * 5 + 2);
    printf("the longest fork beside four writers took %.1f ms\n", longest * 1e3);
    puts("ok");
    return 0;
}
