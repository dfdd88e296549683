// Signals arrive while it starts: handled ones, one that is blocked and stays pending across the lift, a real-time one
// with its value, a timer's.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: lifted text data
#define _GNU_SOURCE
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "early.h"
#include "ranges.h"
#include "ready.h"
#include <signal.h>
#include <sys/time.h>

static volatile int seen[65], value, code;

static void note(int signal, siginfo_t *info, void *context) {
    (void)context;
    seen[signal]++;
    if (signal == SIGRTMIN) {
        value = info->si_value.sival_int;
        code = info->si_code;
    }
}

static void print(const char *when) {
    printf("%s: USR1 %d, USR2 %d, RT %d value %d code %d, TRAP %d, CHLD %d\n", when, seen[SIGUSR1], seen[SIGUSR2],
           seen[SIGRTMIN], value, code, seen[SIGTRAP], seen[SIGCHLD]);
}

static void signals(void) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int signal = 1; signal < 65; signal++)
        if (signal != SIGKILL && signal != SIGSTOP && signal != SIGSEGV) sigaction(signal, &action, NULL);
    raise(SIGUSR1);
    raise(SIGUSR1);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    kill(getpid(), SIGUSR2);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42});
    struct itimerval soon = {.it_value = {.tv_usec = 1}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

BEFORE_ENTRY(signals);

int main(void) {
    print("at the entry");
    sigset_t pending, none;
    sigpending(&pending);
    printf("pending: USR2 %d, RT %d\n", sigismember(&pending, SIGUSR2), sigismember(&pending, SIGRTMIN));
    ready();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    print("unblocked");
    while (!seen[SIGALRM]) usleep(1000);
    printf("alarms %d\n", seen[SIGALRM]);
    check_ranges(0);
    return 0;
}
