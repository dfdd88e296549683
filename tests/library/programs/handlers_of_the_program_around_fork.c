// The program has handlers around fork, registered before the first lift and after it. They write to memory on pool
// pages and take a lock that other threads hold while they write. With an empty pool, the child sees the writes of the
// handlers before the fork, and the handlers after it find their memory: alone, and with other threads running (with
// the shared library, which blocks their writes).
//
// link: shared archive
// needs: pool 64M
#include "fork.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int stop;

static void before(void)
{
    pthread_mutex_lock(&mutex);
    big_data[10]++;
    big_bss[10]++;
}
static void after(void)
{
    big_bss[11]++;
    pthread_mutex_unlock(&mutex);
}
static void late(void) { big_data[30]++; }
__attribute__((constructor)) static void early(void) { CHECK(pthread_atfork(before, after, after) == 0); }

static void *write_locked(void *argument)
{
    (void)argument;
    while (!stop) {
        pthread_mutex_lock(&mutex);
        big_data[20]++;
        for (int at = 0; at < 1 << 20; at += 4096) big_bss[(1 << 20) + at]++;
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void forks(int rounds)
{
    for (int round = 0; round < rounds; round++) {
        uint64_t data = big_data[10], last = big_data[30];
        unsigned char bss = big_bss[10], later = big_bss[11];
        pid_t child = fork();
        if (!child) {
            if (big_data[10] != data + 1 || big_bss[10] != (unsigned char)(bss + 1)) _exit(1);
            if (big_data[30] != last + 1) _exit(6);
            if (big_bss[11] != (unsigned char)(later + 1)) _exit(2);
            // The forking thread had the lock: no other thread was within a step.
            unsigned char first = big_bss[1 << 20];
            for (int at = 0; at < 1 << 20; at += 4096)
                if (big_bss[(1 << 20) + at] != first) _exit(3);
            if (pthread_mutex_trylock(&mutex)) _exit(4);
            _exit(5);
        }
        expect_exit(child, 5);
        CHECK(big_data[10] == data + 1 && big_bss[11] == (unsigned char)(later + 1));
    }
}

static int archive(void)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "libpagelift.so") != NULL;
    fclose(maps);
    return !found;
}

int main(void)
{
    lift_writable();
    CHECK(pthread_atfork(late, NULL, NULL) == 0);
    forks(20);
    if (archive()) return puts("ok"), 0;
    pthread_t threads[3];
    for (int index = 0; index < 3; index++) pthread_create(&threads[index], NULL, write_locked, NULL);
    forks(100);
    stop = 1;
    for (int index = 0; index < 3; index++) pthread_join(threads[index], NULL);
    size_t pool;
    huge_bytes(big_data, sizeof big_data, &pool);
    CHECK(pool >= 4 << 20);
    puts("ok");
    return 0;
}
