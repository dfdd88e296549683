// Threads wait in calls with a fixed time while the process forks repeatedly; each fork stops all other threads. Each
// wait ends as it would without forks: it has its result and no EINTR, is not too short, and ends although forks
// interrupt it many more times than its length contains. A wait that a fork interrupts near its end does not begin
// again, and a wait whose time is over at a fork has its result. A signal of the program itself still ends a wait.
//
// A filter refuses to move memory to a certain address, so that the heap cannot leave the pool: each fork is refused
// after all threads have been stopped.
//
//   waits_last_as_long_as_they_should
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Milliseconds; there is a fork every PERIOD, up to ROUNDS times, in total many times LENGTH. */
enum { LENGTH = 300, PERIOD = 50, ROUNDS = 300, LONG = 6000, SECONDS = 120 };

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void sleep_until(double moment) {
    struct timespec time = {(time_t)(moment / 1e3), (long)((moment - 1e3 * (time_t)(moment / 1e3)) * 1e6)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
        ;
}

/* Milliseconds of the clock that the kernel's ticks drive. If the ticks come late, this clock is late, too. */
static double ticked(clockid_t clock, int (*ask)(clockid_t, struct timespec *)) {
    struct timespec time;
    if (ask(clock, &time)) fail("CLOCK_MONOTONIC_COARSE");
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static struct timespec of(int milliseconds) {
    return (struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L};
}

/* Each returns 0 if the wait ended by its timeout. */
static int in_nanosleep(int length) {
    struct timespec time = of(length);
    return nanosleep(&time, NULL);
}

static int in_nanosleep_with_rest(int length) {
    struct timespec time = of(length);
    return nanosleep(&time, &time);
}

static int in_clock_nanosleep(int length) {
    struct timespec time = of(length);
    errno = clock_nanosleep(CLOCK_BOOTTIME, 0, &time, NULL);
    return errno;
}

static int in_poll(int length) {
    struct pollfd none = {eventfd(0, 0), POLLIN, 0};
    int result = poll(&none, 1, length);
    close(none.fd);
    return result;
}

static int in_ppoll(int length) {
    struct timespec time = of(length);
    return ppoll(NULL, 0, &time, NULL);
}

static int in_select(int length) {
    struct timeval time = {length / 1000, length % 1000 * 1000};
    return select(0, NULL, NULL, NULL, &time);
}

static int in_futex(int length) {
    static uint32_t word;
    struct timespec time = of(length);
    return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0) == -1 && errno == ETIMEDOUT ? 0 : -1;
}

static int in_condition(int length) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += length / 1000;
    until.tv_nsec += length % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&mutex);
    errno = pthread_cond_timedwait(&condition, &mutex, &until);
    pthread_mutex_unlock(&mutex);
    return errno == ETIMEDOUT ? 0 : -1;
}

static int in_epoll(int length) {
    struct epoll_event event;
    int epoll = epoll_create1(0), result = epoll_wait(epoll, &event, 1, length);
    close(epoll);
    return result;
}

static int in_semtimedop(int length) {
    struct timespec time = of(length);
    struct sembuf take = {0, -1, 0};
    int set = semget(IPC_PRIVATE, 1, 0600), result = semtimedop(set, &take, 1, &time), error = errno;
    semctl(set, 0, IPC_RMID);
    errno = error;
    return result == -1 && error == EAGAIN ? 0 : -1;
}

static int in_sigtimedwait(int length) {
    struct timespec time = of(length);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return sigtimedwait(&set, NULL, &time) == -1 && errno == EAGAIN ? 0 : -1;
}

static int in_receive(int length) {
    struct timeval time = {length / 1000, length % 1000 * 1000};
    int pair[2];
    char byte;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("socketpair");
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    int result = recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN ? 0 : -1, error = errno;
    close(pair[0]);
    close(pair[1]);
    errno = error;
    return result;
}

struct wait {
    const char *name;
    int (*wait)(int);
    /* The kernel knows the remaining time. Otherwise the call may fail with EINTR once it has lasted too long. */
    int is_kept;
    /* The kernel counts the wait in ticks (semtimedop: until Linux 5.15). */
    int in_ticks;
    volatile int begun, ended, result, error;
    volatile double from, to, first_tick, last_tick;
    pthread_t thread;
};

static struct wait waits[] = {
    {"nanosleep", in_nanosleep, 1},
    {"nanosleep with rest", in_nanosleep_with_rest, 1},
    {"clock_nanosleep", in_clock_nanosleep, 1},
    {"poll", in_poll, 1},
    {"ppoll", in_ppoll, 1},
    {"select", in_select, 1},
    {"futex", in_futex, 1},
    {"pthread_cond_timedwait", in_condition, 1},
    {"epoll_wait", in_epoll, 0},
    {"semtimedop", in_semtimedop, 0, 1},
    {"sigtimedwait", in_sigtimedwait, 0},
    {"recv", in_receive, 0, 1},
};
enum { WAITS = sizeof waits / sizeof *waits };
static volatile int length;

static void *wait_once(void *argument) {
    struct wait *wait = argument;
    wait->begun = (int)syscall(SYS_gettid);
    wait->first_tick = ticked(CLOCK_MONOTONIC_COARSE, clock_gettime);
    wait->from = now();
    wait->result = wait->wait(length);
    wait->error = errno;
    wait->to = now();
    wait->last_tick = ticked(CLOCK_MONOTONIC_COARSE, clock_gettime);
    wait->ended = 1;
    return NULL;
}

static void refuse_to_move(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MREMAP_FIXED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
}

static void fork_refused(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0 || errno != ENOMEM) fail("a fork was not refused");
}

/* True if the thread sleeps interruptibly, as in all waits; false if it has ended. */
static int is_asleep(int thread) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int file = open(path, O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (length < 0) return 0;
    text[length] = 0;
    return strstr(text, ") S ") != NULL;
}

/* Returns once each thread sleeps in the kernel or has ended. */
static void await_sleep(void) {
    for (int i = 0; i < WAITS; i++)
        while (!waits[i].ended && !(waits[i].begun && is_asleep(waits[i].begun))) poll(NULL, 0, 1);
}

/* Begins all waits and returns once all threads sleep in the kernel. */
static void begin(int milliseconds) {
    length = milliseconds;
    for (int i = 0; i < WAITS; i++) {
        waits[i].begun = waits[i].ended = 0;
        if (pthread_create(&waits[i].thread, NULL, wait_once, &waits[i])) fail("pthread_create");
    }
    await_sleep();
}

/* Begins waits of this length, or longer ones on a slow machine, so that a fork sees all threads asleep before they
   wake. */
static int begin_and_be_seen(int milliseconds) {
    for (;; milliseconds *= 2) {
        begin(milliseconds);
        fork_refused();
        double oldest = 0;
        for (int i = 0; i < WAITS; i++)
            if (now() - waits[i].from > oldest) oldest = now() - waits[i].from;
        if (oldest < 0.8 * milliseconds) return milliseconds;
        for (int i = 0; i < WAITS; i++) pthread_join(waits[i].thread, NULL);
    }
}

static int all_ended(void) {
    int ended = 0;
    for (int i = 0; i < WAITS; i++) ended += waits[i].ended;
    return ended == WAITS;
}

/* Waits whose call could not be recognised. On AArch64 a call's first argument is lost when it ends. If the thread slept
   again before the handler, for its stack's page for example, the call may be another one, and poll and select return
   EINTR. */
static int lost;

static int is_lost(const struct wait *wait) {
#ifdef __aarch64__
    int (*const with_updated_time[])(int) = {in_poll, in_ppoll, in_select};
    for (int i = 0; i < 3; i++)
        if (wait->wait == with_updated_time[i]) return wait->result != 0 && wait->error == EINTR;
#endif
    return wait == NULL;
}

static void check_results(int may_be_interrupted) {
    for (int i = 0; i < WAITS; i++) {
        struct wait *wait = &waits[i];
        pthread_join(wait->thread, NULL);
        int forgiven = may_be_interrupted && !wait->is_kept && wait->error == EINTR;
        if (!forgiven && is_lost(wait)) {
            lost++;
            continue;
        }
        if (wait->result != 0 && !forgiven) {
            fprintf(stderr, "%s: %d, %s\n", wait->name, wait->result, strerror(wait->error));
            _exit(2);
        }
        /* Clocks of the kernel's timers and of clock_gettime differ by less than a millisecond. A wait in ticks begins
           and ends within one. On a busy host either clock can be late. */
        double in_ticks = wait->last_tick - wait->first_tick;
        int is_long = wait->to - wait->from >= length - 1;
        if (wait->in_ticks) is_long |= in_ticks >= length - 2 * ticked(CLOCK_MONOTONIC_COARSE, clock_getres);
        if (!is_long && !forgiven) {
            fprintf(stderr, "%s ended %g ms after its beginning, too early\n", wait->name, wait->to - wait->from);
            _exit(3);
        }
    }
}

/* Interrupts the waits repeatedly. */
static void often(void) {
    int round = 0, usual = begin_and_be_seen(LENGTH);
    for (; !all_ended(); round++) {
        sleep_until(now() + PERIOD);
        await_sleep();
        if (round == ROUNDS) {
            for (int i = 0; i < WAITS; i++)
                if (!waits[i].ended) fprintf(stderr, "%s of %d ms lasts %g ms\n", waits[i].name, usual, now() - waits[i].from);
            _exit(4);
        }
        fork_refused();
    }
    check_results(1);
}

static volatile int late;

static void *be_late(void *moment) {
    sleep_until(*(double *)moment);
    late = 1;
    return NULL;
}

/* Interrupts the waits once, near their end: if the kernel knows the remaining time, the wait does not begin again. */
static void once(void) {
    pthread_t clock;
    begin(LONG);
    double from = now(), limit = from + 1.5 * LONG;
    if (pthread_create(&clock, NULL, be_late, &limit)) fail("pthread_create");
    sleep_until(from + 0.8 * LONG);
    fork_refused();
    for (;;) {
        int left = 0;
        for (int i = 0; i < WAITS; i++) left += waits[i].is_kept && !waits[i].ended;
        if (!left) break;
        if (late) {
            for (int i = 0; i < WAITS; i++)
                if (waits[i].is_kept && !waits[i].ended) fprintf(stderr, "%s has begun again\n", waits[i].name);
            _exit(5);
        }
        poll(NULL, 0, 1);
    }
    check_results(0);
    pthread_join(clock, NULL);
}

static void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

/* Takes a CPU for itself until the moment. */
static void *take_cpu(void *moment) {
    struct sched_param first = {.sched_priority = 1};
    run_on(1);
    if (sched_setscheduler(0, SCHED_FIFO, &first)) fail("sched_setscheduler");
    while (now() < *(double *)moment)
        ;
    return NULL;
}

/* Interrupts the waits once their time is over, before the threads have run again; an earlier fork has seen the calls.
   On AArch64 a call's first argument is lost when it ends, and the call can no longer be recognised as the one seen
   before: only calls that the kernel itself restarts continue. */
static void over_and_not_back(void) {
    pthread_t other;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        printf("one CPU: no wait is over and kept from running\n");
        return;
    }
    run_on(1);
    double usual = begin_and_be_seen(LENGTH), from = now(), until = from + 3 * usual;
    run_on(0);
    if (pthread_create(&other, NULL, take_cpu, &until)) fail("pthread_create");
    sleep_until(from + 2 * usual);
    fork_refused();
#ifdef __aarch64__
    int (*const lost[])(int) = {in_poll, in_ppoll, in_select};
    for (int i = 0; i < WAITS; i++)
        for (int j = 0; j < 3; j++) waits[i].is_kept &= waits[i].wait != lost[j];
#endif
    check_results(1);
    pthread_join(other, NULL);
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
}

static volatile int handled;

static void handle(int number) { handled = number; }

/* A wait that the program's own signal ends fails with EINTR, even after an interruption by a fork. */
static void ended_by_own_signals(void) {
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    begin(1000 * SECONDS);
    for (int i = 0; i < 4; i++) {
        sleep_until(now() + PERIOD);
        await_sleep();
        fork_refused();
    }
    for (int i = 0; i < WAITS; i++) {
        struct wait *wait = &waits[i];
        /* The C library returns no EINTR from a wait for a condition. */
        if (wait->wait == in_condition) continue;
        handled = 0;
        while (!wait->ended) {
            pthread_kill(wait->thread, SIGUSR1);
            poll(NULL, 0, 1);
        }
        pthread_join(wait->thread, NULL);
        if (!handled || wait->result == 0 || wait->error != EINTR) {
            fprintf(stderr, "%s: %d, %s, though a signal was handled\n", wait->name, wait->result, strerror(wait->error));
            _exit(6);
        }
    }
}

/* Makes a check, and makes it again if calls were lost: that is rare. */
static void check(void (*phase)(void)) {
    int tries = 0;
    do {
        if (++tries > 3) fail("poll or select is lost in each of three tries");
        alarm(SECONDS);
        lost = 0;
        phase();
    } while (lost);
}

int main(void) {
    char *held = malloc(3 << 20);
    memset(held, 1, 3 << 20);
    refuse_to_move();
    check(often);
    check(once);
    alarm(SECONDS);
    over_and_not_back();
    ended_by_own_signals();
    printf("all waits ended in time\n");
    return 0;
}
