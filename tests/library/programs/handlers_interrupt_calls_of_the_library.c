// Signals arrive during calls of the library that parse options, and write and drop reports. Their handler forks, and
// calls the library in the parent and in the child: no call waits for the one that it interrupts. The logger runs with
// the signal mask of the caller, and its changes of the mask stay.
//
// link: shared archive
// needs: thp
#include "support.h"
#include <sys/time.h>

#ifdef BRIEF
enum { SIGNALS = 100, SECONDS = 60 };
#else
enum { SIGNALS = 300, SECONDS = 60 };
#endif

static volatile sig_atomic_t handled, lines;

/* Requests the next signal, so that the program runs for a moment before it. */
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
    if (!child) _exit(pagelift_query(NULL) == PAGELIFT_OK ? 5 : 1);
    CHECK(child > 0);
    int status = status_within(SECONDS, child);
    if (WIFSIGNALED(status)) fail("child %d: signal %d", handled, WTERMSIG(status));
    CHECK(WEXITSTATUS(status) == 5);
    CHECK(pagelift_query(NULL) == PAGELIFT_OK);
    handled++;
    /* At a different moment each time. */
    signal_in(500 + handled * 1237 % 3000);
    errno = saved;
}

static void look_at_mask(const char *line, void *context)
{
    (void)line, (void)context;
    sigset_t mask, more;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    CHECK(!sigismember(&mask, SIGALRM) && sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGUSR2) == (lines > 0));
    sigemptyset(&more);
    sigaddset(&more, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &more, NULL) == 0);
    lines++;
}

static void check_masks(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.lift = PAGELIFT_LIFT_TEXT;
    options.logger = look_at_mask;
    sigset_t blocked, mask;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    CHECK(pagelift_lift(&options, NULL) >= 0 && lines > 1);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGTERM));
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
}

int main(void)
{
    check_masks();
    struct sigaction action = { .sa_handler = fork_here, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.objects = "libone.so*,libtwo.so*,libthree.so*";
    options.numa = "node=x";
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    signal_in(1000);
    for (double end = seconds() + SECONDS; handled < SIGNALS && seconds() < end;)
        for (int call = 0; call < 100; call++) CHECK(pagelift_lift(&options, &report) == PAGELIFT_INVALID);
    signal_in(0);
    CHECK(handled >= SIGNALS / 10);
    check_all();
    puts("ok");
    return 0;
}
