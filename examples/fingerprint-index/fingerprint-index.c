/* An index of musical fingerprints, as a service that recognises songs keeps it: for each fingerprint the list of the
   songs and times at which it occurs (at most 7,500), and a forward table that gives each song's own data. All of it is
   malloc'ed, list by list, by as many threads as wanted; a query looks up about a thousand fingerprints, which share
   nothing with one another, and votes for songs. Memory is far larger than any cache and is read at random.

   fingerprint-index MEBIBYTES [THREADS [BYTES-OF-A-POOL-PAGE]]

   speaks the words of the benchmarks' runner (benches/programs/worker.h). With the third argument the program lays its
   data out by hand in a mapping of pool pages of that size: what no allocator can better, and the limit for one. */
#define _GNU_SOURCE
#include "../../benches/programs/worker.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { LONGEST = 7500, FINGERPRINTS_A_QUERY = 1000, READ_OF_A_LIST = 8, SONG_BYTES = 8192, MOST_THREADS = 64, VOTES = 4096 };

struct entry {
    uint32_t song, time;
};

struct list {
    uint64_t count;
    struct entry entries[];
};

static struct list **lists;
static uint8_t **songs;
static uint64_t list_count, song_count, thread_count = 1;

/* The hand-written layout's mapping, if there is one. */
static char *by_hand, *by_hand_end;

static uint64_t mixed(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    return x * UINT64_C(0xc4ceb9fe1a85ec53) ^ x >> 29;
}

/* Most lists are short and a few are long: the cube of an even distribution. */
static uint64_t length_of(uint64_t number) {
    uint64_t part = mixed(number) >> 44;
    return 1 + (uint64_t)((double)part * (double)part * (double)part / 0x1p60 * (LONGEST - 1));
}

static void *memory(size_t bytes) {
    void *block;
    if (!by_hand) {
        block = malloc(bytes);
    } else {
        bytes = (bytes + 63) & ~(size_t)63; /* whole cache lines */
        block = __atomic_fetch_add(&by_hand, bytes, __ATOMIC_RELAXED);
        if ((char *)block + bytes > by_hand_end)
            block = NULL;
    }
    if (!block) {
        fprintf(stderr, "fingerprint-index: no memory for another %zu bytes\n", bytes);
        exit(1);
    }
    return block;
}

/* Each thread makes every n-th list and song, in an order in which neighbours in memory have nothing in common. */
static void *build(void *argument) {
    uint64_t first = (uint64_t)(uintptr_t)argument;
    for (uint64_t i = first; i < list_count; i += thread_count) {
        uint64_t number = mixed(i) % list_count, length;
        while (!__sync_bool_compare_and_swap(&lists[number], NULL, (struct list *)1))
            number = (number + 1) % list_count;
        length = length_of(number);
        struct list *list = memory(sizeof *list + length * sizeof *list->entries);
        list->count = length;
        for (uint64_t e = 0; e < length; e++) {
            uint64_t value = mixed(number << 13 | e);
            list->entries[e].song = (uint32_t)((value >> 32) * song_count >> 32);
            list->entries[e].time = (uint32_t)value;
        }
        lists[number] = list;
    }
    for (uint64_t i = first; i < song_count; i += thread_count) {
        uint8_t *song = memory(SONG_BYTES);
        for (uint64_t at = 0; at < SONG_BYTES; at += 8) {
            uint64_t value = mixed(i << 16 | at);
            memcpy(song + at, &value, 8);
        }
        songs[i] = song;
    }
    return NULL;
}

/* One step is one query. */
static uint64_t work(int workload, uint64_t steps, uint64_t seed) {
    static uint16_t votes[VOTES];
    uint64_t state = seed, sum = 0;
    (void)workload;
    for (uint64_t step = 0; step < steps; step++) {
        memset(votes, 0, sizeof votes);
        for (int f = 0; f < FINGERPRINTS_A_QUERY; f++) {
            state = next_state(state);
            const struct list *list = lists[((unsigned __int128)mixed(state) * list_count) >> 64];
            uint64_t count = list->count, stride = count / READ_OF_A_LIST + 1;
            for (uint64_t e = state % stride; e < count; e += stride) {
                struct entry entry = list->entries[e];
                uint8_t weight = songs[entry.song][entry.time % SONG_BYTES];
                votes[entry.song % VOTES] += weight;
            }
        }
        uint64_t best = 0;
        for (uint64_t song = 0; song < VOTES; song++)
            if (votes[song] > votes[best])
                best = song;
        sum = (sum << 7 | sum >> 57) ^ (best << 16 | votes[best]);
    }
    return sum;
}

static void lay_out_by_hand(uint64_t bytes, uint64_t page) {
    uint64_t all = (bytes + page - 1) / page * page;
    int size = 63 - __builtin_clzll(page);
    void *memory = mmap(NULL, all, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE | size << MAP_HUGE_SHIFT, -1, 0);
    if (memory == MAP_FAILED) {
        perror("fingerprint-index: pool pages");
        exit(1);
    }
    by_hand = memory;
    by_hand_end = by_hand + all;
}

int main(int count, char **words) {
    static const char *const names[] = {"queries", NULL};
    uint64_t numbers[3] = {0, 1, 0}, bytes = 0;
    pthread_t threads[MOST_THREADS];
    for (int i = 1; i < count && i < 4; i++)
        numbers[i - 1] = strtoull(words[i], NULL, 10);
    thread_count = numbers[1];
    if (numbers[0] == 0 || thread_count == 0 || thread_count > MOST_THREADS) {
        fprintf(stderr, "usage: fingerprint-index MEBIBYTES [THREADS [BYTES-OF-A-POOL-PAGE]]\n");
        return 2;
    }
    /* A fifth of the memory is the forward table, the rest lists. */
    uint64_t wanted = numbers[0] << 20;
    song_count = wanted / 5 / SONG_BYTES;
    while (bytes < wanted - wanted / 5)
        bytes += sizeof(struct list) + 64 + length_of(list_count++) * sizeof(struct entry);
    if (numbers[2])
        lay_out_by_hand(wanted + list_count * sizeof *lists + song_count * sizeof *songs + (4 << 20), numbers[2]);
    lists = memory(list_count * sizeof *lists);
    songs = memory(song_count * sizeof *songs);
    memset(lists, 0, list_count * sizeof *lists);
    for (uint64_t i = 1; i < thread_count; i++)
        pthread_create(&threads[i], NULL, build, (void *)(uintptr_t)i);
    build(NULL);
    for (uint64_t i = 1; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    return serve(names, work);
}
