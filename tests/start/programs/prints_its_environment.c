// Prints all that exec(2) passes to a program, into the file named by its first argument if there is one (its standard
// output may be closed), so that a plain and a lifted start can be compared line by line.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "ranges.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static FILE *out;

static void identity(void) {
    fprintf(out, "pid %d ppid %d pgid %d sid %d tty group %d\n", getpid(), getppid(), getpgid(0), getsid(0), tcgetpgrp(0));
    uid_t r, e, s;
    getresuid(&r, &e, &s);
    fprintf(out, "uid %d %d %d", r, e, s);
    getresgid(&r, &e, &s);
    gid_t groups[64];
    fprintf(out, " gid %d %d %d groups %d\n", r, e, s, getgroups(64, groups));
}

static void status_lines(void) {
    static const char *const kept[] = {"Name:", "Umask:", "TracerPid:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:",
                                       "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:",
                                       "Seccomp_filters:", "Speculation_Store_Bypass:", "Cpus_allowed:",
                                       "Mems_allowed_list:", "Threads:", "THP_enabled:", "CoreDumping:"};
    char line[4096];
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            if (!strncmp(line, kept[i], strlen(kept[i]))) fputs(line, out);
    if (status) fclose(status);
}

static void file(const char *path) {
    char text[8192];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    for (ssize_t i = 0; i < length; i++)
        if (!text[i]) text[i] = ' ';
    text[length < 0 ? 0 : length] = 0;
    fprintf(out, "%s: %s\n", path, text);
}

static void descriptors(void) {
    for (int fd = 0; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD), status = fcntl(fd, F_GETFL);
        if (flags < 0 || fd == fileno(out)) continue;
        struct stat about;
        fstat(fd, &about);
        fprintf(out, "fd %d: flags %x, status %x, mode 0%o, device %lx, offset %ld\n", fd, flags, status, about.st_mode,
                (long)about.st_dev, (long)lseek(fd, 0, SEEK_CUR));
    }
}

static void limits_and_settings(void) {
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        getrlimit(resource, &limit);
        fprintf(out, "limit %d: %lx %lx\n", resource, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    int reaper = 0, death = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    prctl(PR_GET_PDEATHSIG, &death);
    fprintf(out, "subreaper %d, death signal %d, dumpable %d, keepcaps %d, securebits %d, slack %d, thp off %d\n", reaper,
            death, prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS), prctl(PR_GET_TIMERSLACK),
            prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    fprintf(out, "personality %x, nice %d, scheduler %d, io priority %ld, mdwe %d\n", personality(0xffffffff),
            getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), syscall(SYS_ioprio_get, 1, 0), prctl(66, 0, 0, 0, 0));
    struct itimerval timer;
    getitimer(ITIMER_REAL, &timer);
    fprintf(out, "timer %s\n", timer.it_value.tv_sec ? "runs" : "does not run");
}

int main(int count, char **arguments) {
    out = count > 1 ? fopen(arguments[1], "we") : stdout;
    identity();
    status_lines();
    file("/proc/self/cmdline");
    file("/proc/self/comm");
    file("/proc/self/oom_score_adj");
    file("/proc/self/coredump_filter");
    file("/proc/self/cgroup");
    file("/proc/thread-self/children");
    file("/proc/thread-self/attr/current");
    char path[4096];
    fprintf(out, "folder %s\n", getcwd(path, sizeof path) ? path : "gone");
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    fprintf(out, "executable %.*s, started as %s\n", (int)length, path, (char *)getauxval(AT_EXECFN));
    fprintf(out, "secure %ld, uid %ld, clock %ld, page %ld\n", getauxval(AT_SECURE), getauxval(AT_UID), getauxval(AT_CLKTCK),
            getauxval(AT_PAGESZ));
    for (int i = 0; i < count; i++) fprintf(out, "argument %d: %s\n", i, arguments[i]);
    for (char **variable = environ; *variable; variable++) fprintf(out, "variable: %s\n", *variable);
    descriptors();
    limits_and_settings();
    for (int signal = 1; signal < 65; signal++) {
        struct sigaction action;
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            fprintf(out, "signal %d is not at its default\n", signal);
    }
    int child = waitpid(-1, NULL, WNOHANG | __WALL);
    fprintf(out, "waiting for any child: %d, %s\n", child, child < 0 ? strerror(errno) : "there is one");
    fclose(out);
    return 0;
}
