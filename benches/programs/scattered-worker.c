/* The demo program's scattered code as a C program, so that it can be linked in several ways. */
#include "worker.h"

uint64_t pagelift_walk(uint64_t steps, uint64_t seed);

static uint64_t work(int workload, uint64_t steps, uint64_t seed) {
    (void)workload;
    return pagelift_walk(steps, seed);
}

int main(void) {
    static const char *const names[] = {"code", NULL};
    return serve(names, work);
}
