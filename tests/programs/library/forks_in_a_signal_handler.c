// A signal handler forks, also one that comes in the middle of another fork and of a lift, with an empty pool.
//
// link: shared
// needs: pool 64M
#include "fork.h"
#include <sys/time.h>

static volatile sig_atomic_t handled;
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
    errno = saved;
}

int main(void)
{
    lift_writable();
    struct sigaction action = { .sa_handler = fork_here, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, NULL);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.lift = PAGELIFT_LIFT_TEXT;
    for (double end = seconds() + 2; seconds() < end || handled < 10;) {
        pid_t child = fork();
        if (!child) {
            setitimer(ITIMER_REAL, &never, NULL);
            _exit(bss_is(1) ? 5 : 1);
        }
        expect_exit(child, 5);
        CHECK(pagelift_lift(&options, NULL) >= 0);
        check_code(1);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(bss_is(1) && data_is(0));
    puts("ok");
    return 0;
}
