// Forty segments of alternating protection below the usual segments of an executable; each has whole huge pages, and
// the gaps between them must stay unmapped.
//
// needs: pool 300M
// build: sh $DIR/make_segments.sh 40 > $BUILD/segments.S
// build: gcc -g -O1 -fno-pie -no-pie -o $OUT $SRC $BUILD/segments.S $(cat $BUILD/segments.options)
// options: --max-memory 1G
// expect: lifted text rodata data
#include "ready.h"
#include <stdint.h>

struct segment {
    uint64_t *words;
    uint64_t blocks; /* of 512 words */
    uint64_t kind; /* 0 code, 1 read-only, 2 writable */
};
extern const struct segment segments[];
extern const uint64_t segment_count;

static void check(uint64_t plus) {
    for (uint64_t s = 0; s < segment_count; s++) {
        volatile uint64_t *words = segments[s].words;
        uint64_t wrong = 0;
        for (uint64_t i = 1; i < 512 * segments[s].blocks; i++)
            if (words[i] != (i / 512) * (i % 512 ? 1 : s + 1) + (segments[s].kind == 2 ? plus : 0)) wrong++;
        uint64_t result = segments[s].kind == 0 ? ((uint64_t(*)(void))(void *)words)() : 0;
        printf("segment %lu of kind %lu: %lu wrong words, result %lu\n", (unsigned long)s,
               (unsigned long)segments[s].kind, (unsigned long)wrong, (unsigned long)result);
    }
}

int main(void) {
    check(0);
    ready();
    check(0);
    for (uint64_t s = 0; s < segment_count; s++)
        for (uint64_t i = 1; segments[s].kind == 2 && i < 512 * segments[s].blocks; i++) segments[s].words[i] += 9;
    check(9);
    return 0;
}
