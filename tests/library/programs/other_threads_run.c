// While other threads execute the code, read the constants and write the data, read-only memory is lifted repeatedly,
// writable memory of a file is refused with the reason, and bss is collapsed in place.
//
// link: shared archive musl musl-static
// needs: pool 64M
#include "support.h"

static volatile int stop;
static void *work(void *argument)
{
    uint64_t rounds = 0;
    for (; !stop; rounds++) {
        check_code(7);
        check_constants(97);
        __atomic_fetch_add(&big_data[(uintptr_t)argument], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add((uint64_t *)(big_bss + 2048 * (uintptr_t)argument), 1, __ATOMIC_RELAXED);
    }
    return (void *)rounds;
}

// The logger gets a line for each range; the report has only the most important reason.
static int refused;
static void hear(const char *line, void *context)
{
    (void)context;
    refused |= strstr(line, "refused: other threads") != NULL;
}

int main(void)
{
    pthread_t threads[4];
    for (uintptr_t index = 0; index < 4; index++) pthread_create(&threads[index], NULL, work, (void *)(index * 1000));
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.writable_pages = PAGELIFT_WRITABLE_HUGETLB;
    options.logger = hear;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
#ifdef BRIEF
    double end = seconds() + 0.7;
#else
    double end = seconds() + 2;
#endif
    while (seconds() < end) {
        refused = 0;
        CHECK(pagelift_lift(&options, &report) == PAGELIFT_PARTIAL && refused);
        size_t pool;
        huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, &pool);
        CHECK(pool >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
        CHECK(pagelift_restore(NULL, &report) == PAGELIFT_OK);
    }
    stop = 1;
    for (uintptr_t index = 0; index < 4; index++) {
        void *rounds;
        pthread_join(threads[index], &rounds);
        uint64_t word = index * 1000 * 5 + 2 + (uint64_t)rounds, byte = *(uint64_t *)(big_bss + 2048 * index * 1000);
        CHECK(big_data[index * 1000] == word && (byte == (uint64_t)rounds));
    }
    puts("ok");
    return 0;
}
