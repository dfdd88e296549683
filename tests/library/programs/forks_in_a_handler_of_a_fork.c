// Handlers of the program around fork, registered before the archive's own, fork themselves: before the fork, and after
// it in the parent and in the child. The preparation for the outer fork lasts until that fork is done: with an empty
// pool, every child finds its memory and can write to all pages. The library is usable afterwards, and the signal mask
// is that of the program.
//
// link: shared archive
// needs: pool 64M
#include "fork.h"

enum { SECONDS = 120 };
enum place { NOWHERE, BEFORE, IN_PARENT, IN_CHILD };
// Not on pool pages, since the child's handler writes to it while no page is available.
static enum place *due;

static int is_usable(void)
{
    sigset_t mask;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    return !sigprocmask(SIG_BLOCK, NULL, &mask) && !sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGUSR2) &&
           pagelift_query(&report) == PAGELIFT_OK;
}

__attribute__((noreturn)) static void use_all(void)
{
    size_t pool;
    alarm(SECONDS);
    huge_bytes(big_data, sizeof big_data, &pool);
    if (pool > 0 || !bss_is(1) || !data_is(0)) _exit(1);
    memset(big_bss, 2, BSS_BYTES);
    add_to_data(7);
    if (!bss_is(2) || !data_is(7)) _exit(2);
    _exit(is_usable() ? 5 : 3);
}

static void fork_if_due(enum place place)
{
    if (*due != place) return;
    *due = NOWHERE;
    pid_t child = fork();
    if (!child) use_all();
    expect_exit(child, 5);
}

static void before(void) { fork_if_due(BEFORE); }
static void in_parent(void) { fork_if_due(IN_PARENT); }
static void in_child(void) { fork_if_due(IN_CHILD); }
static void register_first(void)
{
    due = mmap(NULL, sizeof *due, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(due != MAP_FAILED && pthread_atfork(before, in_parent, in_child) == 0);
}
__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = register_first;

int main(void)
{
    alarm(SECONDS);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    lift_writable();
    size_t pool_before, pool_after;
    huge_bytes(big_data, sizeof big_data, &pool_before);
    int mappings = count_mappings();
    for (int round = 0; round < 5; round++)
        for (enum place place = NOWHERE; place <= IN_CHILD; place++) {
            *due = place;
            pid_t child = fork();
            if (!child) use_all();
            expect_exit(child, 5);
            *due = NOWHERE;
            CHECK(is_usable() && bss_is(1) && data_is(0));
        }
    huge_bytes(big_data, sizeof big_data, &pool_after);
    CHECK(pool_before >= 4 << 20 && pool_before == pool_after && count_mappings() == mappings);
    puts("ok");
    return 0;
}
