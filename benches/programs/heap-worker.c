/* A program bound by its heap: many malloc'ed lists of 256 B to 16 KiB behind a table, as in an inverted index.
   A step reads one random entry of one random list. The argument is the heap's size in MiB. */
#include "worker.h"

struct list {
    uint64_t count;
    uint64_t entries[];
};

static struct list **lists;
static uint64_t list_count;

static uint64_t work(int workload, uint64_t steps, uint64_t seed) {
    uint64_t state = seed, sum = 0;
    (void)workload;
    for (uint64_t step = 0; step < steps; step++) {
        state = next_state(state);
        const struct list *list = lists[((unsigned __int128)state * list_count) >> 64];
        uint64_t place = (state * UINT64_C(0xff51afd7ed558ccd)) >> 32;
        sum = (sum << 5 | sum >> 59) ^ list->entries[(place * list->count) >> 32];
    }
    return sum;
}

int main(int count, char **words) {
    static const char *const names[] = {"look-ups", NULL};
    uint64_t size = count == 2 ? strtoull(words[1], NULL, 10) << 20 : 0, state = 1;
    if (size == 0) {
        fprintf(stderr, "usage: heap-worker MEBIBYTES\n");
        return 2;
    }
    list_count = size / (8u << 10);
    lists = malloc(list_count * sizeof *lists);
    for (uint64_t i = 0; lists && i < list_count; i++) {
        state = next_state(state);
        uint64_t entries = 32 + (state >> 53) % 2016;
        lists[i] = malloc(sizeof **lists + entries * sizeof(uint64_t));
        if (!lists[i])
            lists = NULL;
        else {
            lists[i]->count = entries;
            for (uint64_t entry = 0; entry < entries; entry++)
                lists[i]->entries[entry] = state = next_state(state);
        }
    }
    if (!lists) {
        fprintf(stderr, "heap-worker: no memory for %" PRIu64 " MiB\n", size >> 20);
        return 1;
    }
    return serve(names, work);
}
