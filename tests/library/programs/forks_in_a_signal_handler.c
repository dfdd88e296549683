// A signal handler forks with an empty pool, also if it interrupts another fork or a lift.
//
// link: shared
// needs: pool 64M
#include "fork.h"
#include <sys/time.h>

static volatile sig_atomic_t handled;

/* Requests the next signal, so that the program runs for a moment before it. At a fixed rate a slow machine would only
   handle signals. */
static void signal_in(int microseconds)
{
    struct itimerval once = { { 0, 0 }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &once, NULL);
}

static void fork_here(int signal)
{
    (void)signal;
    int saved = errno;
    pid_t child = fork();
    if (!child) {
        memset(big_bss, 2, BSS_BYTES);
        _exit(big_bss[12345] == 2 && big_data[777] == 777 * 5 + 2 ? 5 : 1);
    }
    expect_exit(child, 5);
    handled++;
    /* At a different moment each time. */
    signal_in(1000 + handled * 1237 % 20000);
    errno = saved;
}

int main(void)
{
    lift_writable();
    struct sigaction action = { .sa_handler = fork_here, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    signal_in(20000);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.lift = PAGELIFT_LIFT_TEXT;
    for (double end = seconds() + 2; seconds() < end || handled < 10;) {
        pid_t child = fork();
        if (!child) {
            signal_in(0);
            _exit(bss_is(1) ? 5 : 1);
        }
        expect_exit(child, 5);
        CHECK(pagelift_lift(&options, NULL) >= 0);
        check_code(1);
    }
    signal_in(0);
    CHECK(bss_is(1) && data_is(0));
    puts("ok");
    return 0;
}
