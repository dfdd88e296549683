// Threads wait for ever in calls that a signal ends; the signal is unblocked only during the call. Each signal must end
// one call with EINTR, its handler must have run by then, and no call may end without a signal.
//
// build: gcc -g -O1 -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 9000000
#include "ranges.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 4, LIMIT_SECONDS = 60 };
static const char *const names[CALLS] = {"epoll_pwait", "ppoll", "pselect", "sigsuspend"};
static atomic_int stop, faults, ended[CALLS];
static __thread volatile sig_atomic_t handled;

static void handler(int signal) { (void)signal, handled++; }

static int wait_in(int call, int epoll, const sigset_t *let_in) {
    struct epoll_event event;
    switch (call) {
    case 0: return epoll_pwait(epoll, &event, 1, -1, let_in);
    case 1: return ppoll(0, 0, 0, let_in);
    case 2: return pselect(0, 0, 0, 0, 0, let_in);
    default: return sigsuspend(let_in);
    }
}

static void *waits(void *number) {
    int call = (int)(intptr_t)number, epoll = epoll_create1(0);
    sigset_t none;
    sigemptyset(&none);
    for (int expected = 1; !stop; expected++) {
        int result = wait_in(call, epoll, &none);
        if (result != -1 || errno != EINTR || handled != expected) {
            printf("%s: %d, %s, %d signals instead of %d\n", names[call], result, strerror(errno), (int)handled, expected);
            atomic_fetch_add(&faults, 1);
        }
        atomic_fetch_add(&ended[call], 1);
    }
    return 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* A second signal before the first has ended its call would be merged with it. */
static void wake(pthread_t thread, int call) {
    int before = ended[call];
    double since = now();
    pthread_kill(thread, SIGUSR1);
    while (ended[call] == before) {
        struct timespec t = {0, 20000};
        nanosleep(&t, 0);
        if (now() - since < LIMIT_SECONDS) continue;
        printf("%s: a signal has not ended it\n", names[call]);
        fflush(stdout);
        _exit(1);
    }
}

int main(void) {
    pthread_t threads[CALLS];
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigset_t user;
    fill_bss();
    run_code();
    sigaction(SIGUSR1, &action, 0);
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &user, 0);
    for (int call = 0; call < CALLS; call++) pthread_create(&threads[call], 0, waits, (void *)(intptr_t)call);
    printf("ready\n");
    fflush(stdout);
    struct pollfd in = {0, POLLIN, 0};
    while (poll(&in, 1, 0) == 0)
        for (int call = 0; call < CALLS; call++) wake(threads[call], call);
    stop = 1;
    int signals = 0;
    for (int call = 0; call < CALLS; call++) {
        wake(threads[call], call);
        pthread_join(threads[call], 0);
        signals += ended[call];
    }
    printf("%d signals\n", signals);
    printf("%d faults\n", faults);
    return 0;
}
