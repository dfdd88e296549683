// Prints the guard's cost for a fork: without pool pages, and with data and bss on pool pages.
//
// link: shared
// needs: pool 64M
#include "fork.h"

static double fork_time(void)
{
    double best = 1;
    for (int round = 0; round < 20; round++) {
        double start = seconds();
        pid_t child = fork();
        if (!child) _exit(0);
        double took = seconds() - start;
        if (took < best) best = took;
        expect_exit(child, 0);
    }
    return best * 1e6;
}

int main(void)
{
    memset(big_bss, 1, BSS_BYTES);
    double plain = fork_time();
    lift_writable();
    size_t pool;
    huge_bytes(big_data, sizeof big_data + sizeof big_bss, &pool);
    double guarded = fork_time();
    printf("a fork takes %.0f us, with writable memory on the pool %.0f us\n", plain, guarded);
    // The copy is limited by memory: even a slow machine copies 100 MB a second.
    CHECK(guarded < plain + 200000);
    puts("ok");
    return 0;
}
