// Eight threads fork repeatedly at the same time, with an empty pool, while others write: every child reads and writes
// all its memory and lives.
//
// link: shared archive
// needs: pool 64M
#include "fork.h"

static volatile int stop;
static void *write_always(void *argument)
{
    uint64_t index = (uintptr_t)argument;
    while (!stop) {
        for (int at = 0; at < BSS_BYTES; at += 4096) big_bss[at + index] = 1;
        __atomic_fetch_add(&big_data[index], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *fork_often(void *argument)
{
    (void)argument;
    for (int round = 0; round < 15; round++) {
        pid_t child = fork();
        if (!child) {
            for (uint64_t index = 8; index < WORDS; index++)
                if (big_data[index] != index * 5 + 2) _exit(1);
            if (!bss_is(1)) _exit(2);
            memset(big_bss, 2, BSS_BYTES);
            _exit(bss_is(2) ? 5 : 3);
        }
        CHECK(child > 0);
        expect_exit(child, 5);
    }
    return NULL;
}

int main(void)
{
    lift_writable();
    pthread_t threads[8], writers[2];
    for (uintptr_t index = 0; index < 2; index++) pthread_create(&writers[index], NULL, write_always, (void *)index);
    for (int index = 0; index < 8; index++) pthread_create(&threads[index], NULL, fork_often, NULL);
    for (int index = 0; index < 8; index++) pthread_join(threads[index], NULL);
    stop = 1;
    for (int index = 0; index < 2; index++) pthread_join(writers[index], NULL);
    CHECK(bss_is(1));
    size_t pool;
    huge_bytes(big_data, sizeof big_data, &pool);
    CHECK(pool >= 4 << 20);
    puts("ok");
    return 0;
}
