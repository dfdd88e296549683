// Threads wait in every kind of system call, run a signal handler, or compute, while the program is lifted and
// restored: no thread may see an error, an early end, or a wrong number. The program checks its own ranges all the
// time.
//
// build: gcc -g -O1 -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 9000000
#include "ranges.h"
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop, faults, rounds;
static int word;

static void check_pages(const char *name, const volatile uint64_t *words, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / 8; i += 61)
        if (words[i] != (i + 1) * ODD) printf("%s differs at word %lu\n", name, (unsigned long)i), atomic_fetch_add(&faults, 1);
}

static void check_quietly(void) {
    run_code();
    check_pages("rodata", large_rodata, RODATA_BYTES);
    check_pages("data", large_data, DATA_BYTES);
    check_pages("bss", large_bss, BSS_BYTES);
}

static double seconds(clockid_t clock, int (*ask)(clockid_t, struct timespec *)) {
    struct timespec t;
    ask(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double now(void) { return seconds(CLOCK_MONOTONIC, clock_gettime); }

/* Seconds by the clock that the kernel's ticks drive. If the ticks come late, this clock is late, too. */
static double ticked(void) { return seconds(CLOCK_MONOTONIC_COARSE, clock_gettime); }

/* Any stop can end some calls with EINTR (signal(7)); the lifter restarts the call, unless it is killed just then. */
static int forgiven(void) { return getenv("FORGIVE_EINTR") && errno == EINTR; }

static void fault(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    atomic_fetch_add(&faults, 1);
}

static void lasted(const char *what, int good, double time, double least) {
    if (!good && forgiven()) return;
    if (!good) fault(what);
    if (time < least) printf("%s ended early, after %.4f s\n", what, time), atomic_fetch_add(&faults, 1);
    atomic_fetch_add(&rounds, 1);
}

/* A wait of a tenth of a second must take at least that long and end as it should. */
static void timed(const char *what, int good, double started) { lasted(what, good, now() - started, 0.0995); }

/* A wait that the kernel may count in ticks (semtimedop: until Linux 5.15): it then begins and ends within one. On a busy
   host either clock can be late, so that a wait is too short only if both say so. */
static void timed_in_ticks(const char *what, int good, double started, double first_tick) {
    double tick = 2 * seconds(CLOCK_MONOTONIC_COARSE, clock_getres), in_ticks = ticked() - first_tick;
    lasted(what, good, in_ticks >= 0.1 - tick ? 0.1 : now() - started, 0.0995);
}

static void *sleeps(void *unused) {
    (void)unused;
    while (!stop) {
        struct timespec t = {0, 100000000}, rest;
        double s = now();
        timed("nanosleep", nanosleep(&t, &rest) == 0, s);
    }
    return 0;
}

static void *waits_for_futex(void *unused) {
    (void)unused;
    while (!stop) {
        struct timespec t = {0, 100000000};
        double s = now();
        long r = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, 0, 0);
        timed("futex", r == -1 && errno == ETIMEDOUT, s);
    }
    return 0;
}

static void *waits_for_epoll(void *unused) {
    (void)unused;
    int e = epoll_create1(0);
    while (!stop) {
        struct epoll_event event;
        double s = now();
        timed("epoll_wait", epoll_wait(e, &event, 1, 100) == 0, s);
    }
    return 0;
}

static void *polls(void *unused) {
    (void)unused;
    int p[2];
    if (pipe(p)) fault("pipe");
    while (!stop) {
        struct pollfd f = {p[0], POLLIN, 0};
        struct timespec t = {0, 100000000};
        double s = now();
        timed("ppoll", ppoll(&f, 1, &t, 0) == 0, s);
    }
    return 0;
}

static void *reads(void *unused) {
    (void)unused;
    int p[2];
    if (pipe(p)) fault("pipe");
    while (!stop) {
        char c = 0;
        int child = 0;
        struct timespec t = {0, 20000000};
        (void)child;
        if (write(p[1], "x", 1) != 1) fault("write");
        if (read(p[0], &c, 1) != 1 || c != 'x') fault("read");
        nanosleep(&t, 0);
        atomic_fetch_add(&rounds, 1);
    }
    return 0;
}

static int feeding[2];
static void *waits_for_bytes(void *unused) {
    (void)unused;
    char c;
    for (int next = 0; !stop; next++) {
        long got = read(feeding[0], &c, 1);
        if (got == 0) break;
        if (got != 1) fault("read that waits");
        else if (c != (char)next) printf("a byte is lost\n"), atomic_fetch_add(&faults, 1);
    }
    return 0;
}

static void *waits_for_semaphore(void *unused) {
    (void)unused;
    int s = semget(IPC_PRIVATE, 1, 0600);
    while (!stop) {
        struct sembuf take = {0, -1, 0};
        struct timespec t = {0, 100000000};
        double first_tick = ticked(), started = now();
        timed_in_ticks("semtimedop", semtimedop(s, &take, 1, &t) == -1 && errno == EAGAIN, started, first_tick);
    }
    semctl(s, 0, IPC_RMID);
    return 0;
}

static volatile double sink;
static void *computes(void *unused) {
    (void)unused;
    while (!stop) {
        double sum = 0;
        for (int i = 1; i < 2000000; i++) sum += 1.0 / i * (i & 1 ? 1 : -1);
        if (sum < 0.69314 || sum > 0.69316) printf("wrong sum %.9f\n", sum), atomic_fetch_add(&faults, 1);
        sink = sum;
        atomic_fetch_add(&rounds, 1);
    }
    return 0;
}

static atomic_int handled;
static void handler(int signal) {
    (void)signal;
    struct timespec t = {0, 3000000};
    nanosleep(&t, 0);
    atomic_fetch_add(&handled, 1);
}

static void *starts_threads_and_children(void *unused);
static void *nothing(void *unused) { return unused; }
static void *starts_threads_and_children(void *unused) {
    (void)unused;
    while (!stop) {
        pthread_t t;
        if (pthread_create(&t, 0, nothing, 0)) fault("pthread_create");
        else pthread_join(t, 0);
        pid_t child = fork();
        if (child == 0) _exit(7);
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) fault("child");
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, 0);
        atomic_fetch_add(&rounds, 1);
    }
    return 0;
}

int main(void) {
    void *(*bodies[])(void *) = {sleeps, waits_for_futex, waits_for_epoll, polls, reads, waits_for_bytes,
                                 waits_for_semaphore, computes, starts_threads_and_children};
    enum { COUNT = sizeof bodies / sizeof *bodies };
    pthread_t threads[COUNT];
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigset_t user;
    fill_bss();
    if (pipe(feeding)) fault("pipe");
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &user, 0);
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < COUNT; i++) pthread_create(&threads[i], 0, bodies[i], 0);
    pthread_sigmask(SIG_UNBLOCK, &user, 0);
    printf("ready\n");
    fflush(stdout);
    struct pollfd in = {0, POLLIN, 0};
    int told = 0, until_round = 0, until_signal = 0;
    /* After the request to end, some rounds and signals follow undisturbed, however long these take. */
    for (int i = 0; !told || rounds <= until_round || handled <= until_signal; i++) {
        char c = (char)i;
        if (write(feeding[1], &c, 1) != 1) fault("feeding");
        kill(getpid(), SIGUSR1);
        check_quietly();
        if (poll(&in, 1, 5) > 0 && !told) told = 1, until_round = rounds + 40, until_signal = handled + 20;
    }
    stop = 1;
    close(feeding[1]);
    for (int i = 0; i < COUNT; i++)
        if (bodies[i] != waits_for_bytes) pthread_join(threads[i], 0);
    printf("%d faults\n", faults);
    return 0;
}
