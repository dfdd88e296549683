/* A worker in C: the words of crates/measure/measure/src/protocol.rs over standard input and output. */
#ifndef PAGELIFT_BENCH_WORKER_H
#define PAGELIFT_BENCH_WORKER_H
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Runs `steps` steps of workload number `workload`; the result is decided by `steps` and `seed` alone. */
typedef uint64_t (*work_function)(int workload, uint64_t steps, uint64_t seed);

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) {
        perror("clock_gettime");
        exit(1);
    }
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline uint64_t next_state(uint64_t state) {
    return state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
}

/* Greets with the names, of which the last is followed by NULL, then answers bursts until the input ends. */
static inline int serve(const char *const *names, work_function work) {
    char name[32], line[160];
    uint64_t steps, lead_in, seed;
    printf("pagelift-worker 1");
    for (const char *const *n = names; *n; n++)
        printf(" %s", *n);
    printf("\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int workload = -1;
        if (sscanf(line, "burst %31s %" SCNu64 " %" SCNu64 " %" SCNu64, name, &steps, &lead_in, &seed) == 4)
            for (int i = 0; names[i]; i++)
                if (__builtin_strcmp(names[i], name) == 0)
                    workload = i;
        if (workload < 0) {
            printf("error no such burst\n");
        } else {
            volatile uint64_t kept = lead_in ? work(workload, lead_in, ~seed) : 0;
            uint64_t cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), wall = nanoseconds(CLOCK_MONOTONIC);
            kept = work(workload, steps, seed);
            wall = nanoseconds(CLOCK_MONOTONIC) - wall;
            cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
            printf("done %" PRIu64 " %" PRIu64 " %" PRIx64 "\n", wall, cpu, kept);
        }
        fflush(stdout);
    }
    return 0;
}
#endif
