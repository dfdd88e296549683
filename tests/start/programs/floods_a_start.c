// Becomes the program that the arguments name, with every signal ignored, and floods it with all signals from outside
// until it ends: the next flood comes 3 ms after the last has been taken.
//
// build: gcc -g -O1 -o $OUT $SRC
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LAST = 64 };

struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

/* True if signals of the process are queued; ends this process if that one has ended. */
static int are_queued(const char *status) {
    char line[256];
    unsigned long long pending = 0;
    FILE *file = fopen(status, "r");
    if (!file) _exit(0);
    while (fgets(line, sizeof line, file) && sscanf(line, "ShdPnd: %llx", &pending) != 1) {
    }
    fclose(file);
    return pending != 0;
}

static void flood(pid_t to) {
    char status[32];
    snprintf(status, sizeof status, "/proc/%d/status", to);
    for (;;) {
        for (int signal = 1; signal <= LAST; signal++) {
            if (signal == SIGKILL || signal == SIGSTOP) continue;
            siginfo_t info;
            memset(&info, 0, sizeof info);
            info.si_signo = signal;
            info.si_code = SI_QUEUE;
            info.si_pid = getpid();
            /* EAGAIN: the queue is full. */
            if (syscall(SYS_rt_sigqueueinfo, to, signal, &info) < 0 && errno != EAGAIN) _exit(0);
        }
        /* Each ignored signal stops a traced thread, and the kernel walks the whole queue for each signal that it
           takes: with more signals than a thread takes, the queue grows to tens of thousands, and the thread never
           runs. */
        struct timespec time = {0, 3000000};
        do {
            nanosleep(&time, 0);
        } while (are_queued(status));
    }
}

int main(int count, char **words) {
    if (count < 2) return 2;
    struct kernel_action ignore = {.handler = SIG_IGN};
    for (int signal = 1; signal <= LAST; signal++) syscall(SYS_rt_sigaction, signal, &ignore, 0, 8);
    pid_t self = getpid();
    /* Two forks, so that the program has no child. Its input and output must not stay open. */
    pid_t between = fork();
    if (between == 0) {
        if (fork() == 0) {
            for (int descriptor = 0; descriptor < 3; descriptor++) close(descriptor);
            flood(self);
        }
        _exit(0);
    }
    /* If a parent ignores SIGCHLD, waitpid does not report the end of a child: it waits until there is none. */
    while (waitpid(between, 0, 0) < 0 && errno == EINTR) {
    }
    execv(words[1], words + 1);
    perror(words[1]);
    return 1;
}
