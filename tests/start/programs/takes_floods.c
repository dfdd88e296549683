// Every signal that can be handled arrives in floods, each queued with a value, from before the entry to the end. No
// real-time signal may be lost, none may come twice or overtake another of its number in the same thread, and each must
// show its sender and value. The first argument is the number of further threads.
//
// build: gcc -g -O1 -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 3000000
#define DATA_BYTES 3000000
#define BSS_BYTES 3000000
#include "early.h"
#include "ranges.h"
#include "ready.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { LAST = 64, FIRST_REAL_TIME = 32, MOST_ON_THEIR_WAY = 40, LIMIT_SECONDS = 120, VALUES = 1 << 17 };

static struct shared {
    atomic_int sent[LAST + 1], taken[LAST + 1], stop, stopped, faults;
    /* Counts each value: with a pause of 2 ms between them, there are enough for more than LIMIT_SECONDS. */
    atomic_uchar seen[LAST + 1][VALUES];
} *shared;
static pid_t sender;
static __thread int last[LAST + 1];
static int further_threads;

static void fault(const char *what, const siginfo_t *info) {
    if (atomic_fetch_add(&shared->faults, 1) < 10)
        dprintf(1, "signal %d: %s (code %d, from %d, value %d)\n", info->si_signo, what, info->si_code, info->si_pid,
                info->si_value.sival_int);
}

/* A signal of a fault that a process has sent to a thread in a call of the lift is queued again by the kernel, for all
 * threads, so that another thread may have taken a later one by then. */
static int is_queued_again(int signal) {
    int is_of_fault = signal == SIGSYS || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE ||
                      signal == SIGTRAP;
    return is_of_fault && further_threads > 0;
}

static void take(int signal, siginfo_t *info, void *context) {
    (void)context;
    int value = info->si_value.sival_int;
    if (signal == SIGCHLD && info->si_code == CLD_EXITED) return;
    if (info->si_code != SI_QUEUE || info->si_pid != sender || info->si_signo != signal)
        fault("its payload is not the sender's", info);
    if (value < 0 || value >= VALUES || atomic_fetch_add(&shared->seen[signal][value], 1)) fault("it comes twice", info);
    if (value < last[signal] && !is_queued_again(signal)) fault("it has overtaken another", info);
    last[signal] = value;
    atomic_fetch_add(&shared->taken[signal], 1);
}

/* The C library sets a handler for 33 when it makes the first thread. */
static int is_taken(int signal) {
    return signal != SIGKILL && signal != SIGSTOP && (signal != 33 || further_threads == 0);
}

static void pause_for(long nanoseconds) {
    struct timespec time = {0, nanoseconds};
    syscall(SYS_nanosleep, &time, 0);
}

static void flood(pid_t to) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    siginfo_t info;
    while (!shared->stop) {
        for (int signal = 1; signal <= LAST; signal++) {
            if (!is_taken(signal)) continue;
            if (signal >= FIRST_REAL_TIME && shared->sent[signal] - shared->taken[signal] >= MOST_ON_THEIR_WAY) continue;
            memset(&info, 0, sizeof info);
            info.si_signo = signal;
            info.si_code = SI_QUEUE;
            info.si_pid = getpid();
            info.si_uid = getuid();
            info.si_value.sival_int = shared->sent[signal] + 1;
            if (syscall(SYS_rt_sigqueueinfo, to, signal, &info) == 0) atomic_fetch_add(&shared->sent[signal], 1);
        }
        /* Each signal stops a traced thread: with many more in a second, the thread would do nothing else. */
        pause_for(2000000);
    }
    shared->stopped = 1;
    _exit(0);
}

/* The kernel's struct sigaction; sigaction(3) refuses the C library's own signals. */
struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static void start_flood(int count, char **words) {
    further_threads = count > 1 ? atoi(words[1]) : 0;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, 0);
    struct kernel_action kernel_action;
    syscall(SYS_rt_sigaction, SIGUSR1, 0, &kernel_action, 8);
    kernel_action.mask = ~0ul;
    /* The sender's number must be known before its first signal. */
    sigset_t before;
    sigprocmask(SIG_BLOCK, &action.sa_mask, &before);
    unsigned long all = ~0ul;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, 0, 8);
    for (int signal = 1; signal <= LAST; signal++)
        if (is_taken(signal)) syscall(SYS_rt_sigaction, signal, &kernel_action, 0, 8);
    pid_t self = getpid();
    sender = fork();
    if (sender == 0) flood(self);
    unsigned long none = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, 8);
    while (shared->taken[LAST] < 20) pause_for(100000);
}

BEFORE_ENTRY(start_flood);

static void *beside(void *unused) {
    while (!shared->stopped) {
        run_code();
        pause_for(300000);
    }
    return unused;
}

static int some_are_on_their_way(void) {
    for (int signal = FIRST_REAL_TIME; signal <= LAST; signal++)
        if (shared->taken[signal] < shared->sent[signal]) return 1;
    return 0;
}

int main(void) {
    pthread_t thread[64];
    fill_bss();
    for (int i = 0; i < further_threads; i++) pthread_create(&thread[i], 0, beside, 0);
    ready();
    shared->stop = 1;
    int status;
    while (waitpid(sender, &status, 0) < 0 && errno == EINTR) {
    }
    for (int i = 0; i < further_threads; i++) pthread_join(thread[i], 0);
    for (int i = 0; i < LIMIT_SECONDS * 1000 && some_are_on_their_way(); i++) pause_for(1000000);
    int lost = 0, added = 0;
    for (int signal = 1; signal <= LAST; signal++) {
        int missing = shared->sent[signal] - shared->taken[signal];
        if (missing > 0 && signal >= FIRST_REAL_TIME) lost += missing;
        if (missing < 0) added -= missing;
        /* Pending signals of the same number are merged, so some may be missing, but not all. A SIGCONT discards
         * pending stop signals, and a stop signal discards a pending SIGCONT. */
        int is_of_job_control = signal == SIGCONT || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
        if (is_taken(signal) && !is_of_job_control && shared->taken[signal] == 0) lost++;
    }
    fprintf(stderr, "%d signals with number 64\n", shared->taken[LAST]);
    printf("%d lost, %d added, %d faults\n", lost, added, shared->faults);
    return lost || added || shared->faults;
}
