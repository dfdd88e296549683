// Repeats the changes that its first argument names while it is lifted and restored, and checks its own code all the
// time. After a line of input it reports whether anything was wrong.
//
//   exec         executes itself, from its first thread and from another in turn
//   fork         has children that exit with a status, also by vfork, some with threads
//   maps         maps, protects and unmaps memory, including its own file and code
//   patches      changes pages of its own code permanently; each is read-only before and afterwards
//   mounts       mounts over /proc and over its own folder, in separate namespaces
//   credentials  changes its user, its capabilities, and whether it may be dumped
//   filters      has children that get seccomp filters, on all their threads at once, and exit with a status
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1100
#include "ranges.h"
#include "ready.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;
static uint64_t right;
static int wrong;
static char *what;

static void fault(const char *text) {
    printf("%s: %s\n", text, strerror(errno));
    fflush(stdout);
    wrong++;
}

static int is_told_to_end(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

static void check(void) {
    if (run_code() != right) fault("its code");
}

/* Waits for a part of a millisecond, a different one each time. */
static void rest(void) {
    static unsigned step;
    struct timespec time = {0, 1000 + step++ * 7919 % 700000};
    nanosleep(&time, NULL);
}

static void start(void *(*what)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, argument)) fault("pthread_create");
}

/* exec */

static char count[16];

static void *execute_itself(void *rests) {
    // From no time to longer than a lift takes.
    if (rests) usleep((unsigned)atoi(count) * 7919u % 60000);
    char *words[] = {"changes_all_the_time", "exec", count, NULL};
    execve("/proc/self/exe", words, environ);
    fault("execve");
    return NULL;
}

static void exec_again(const char *before) {
    int number = atoi(before) + 1;
    snprintf(count, sizeof count, "%d", number);
    check();
    // The exec would lose this state.
    if (wrong) exit(1);
    if (is_told_to_end()) return;
    if (number % 2) execute_itself("rests");
    start(execute_itself, "rests");
    for (;;) pause();
}

/* fork and filters */

enum { STATUS = 7 };

static void *run_for_ever(void *unused) {
    for (;;) rest();
    return unused;
}

static int add_filter(unsigned refused, unsigned action) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0;
}

static void get_filters(void) {
    // The second kind of filter kills the whole process for a call that every lift makes.
    static const unsigned calls[] = {SYS_madvise, SYS_openat, SYS_prctl, SYS_mremap, SYS_mprotect, SYS_munmap};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fault("no new privileges");
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (add_filter(calls[i], i < 3 ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS)) fault("seccomp");
        rest();
    }
}

static void be_child(int gets_filters, int has_threads) {
    wrong = 0;
    for (int i = 0; has_threads && i < 2; i++) start(run_for_ever, NULL);
    rest();
    if (gets_filters) get_filters();
    check();
    rest();
    syscall(SYS_exit_group, wrong ? 1 : STATUS);
}

static void one_child(int gets_filters) {
    static unsigned round;
    int by_vfork = !gets_filters && ++round % 3 == 0;
    pid_t child = by_vfork ? vfork() : fork();
    if (child == 0 && by_vfork) _exit(STATUS);
    if (child == 0) be_child(gets_filters, gets_filters || round % 3 == 1);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != STATUS) {
        printf("child %d ended with %#x\n", (int)child, status);
        fault("a child");
    }
}

/* maps */

static void change_maps(void) {
    static unsigned step;
    step++;
    size_t length = 4096 * (1 + step % 40);
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fault("mmap");
    memset(memory, 1, length);
    if (mprotect(memory, length, PROT_READ)) fault("mprotect");
    char *moved = mremap(memory, length, length * 2, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return fault("mremap");
    if (moved[length - 1] != 1) fault("what was moved");
    if (munmap(moved, length * 2)) fault("munmap");
    int file = open("/proc/self/exe", O_RDONLY);
    void *mapped = mmap(NULL, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED || memcmp(mapped, "\177ELF", 4) || munmap(mapped, 1 << 20)) fault("its file");
    // Changes a page of code that no thread executes now, and restores it; this splits the mapping.
    char *page = scattered_code + 4096 * (step % CODE_PAGES);
    if (mprotect(page, 4096, PROT_READ | PROT_WRITE)) return fault("mprotect of code");
    page[100] ^= 1;
    page[100] ^= 1;
    if (mprotect(page, 4096, PROT_READ | PROT_EXEC)) fault("mprotect of code");
}

/* patches */

/* The counter in a page of code, after the function. */
static unsigned *counter_of(unsigned page) {
    return (unsigned *)(void *)(scattered_code + 4096 * page + 128);
}

static void patch_code(void) {
    static unsigned step, last[CODE_PAGES];
    for (unsigned page = 0; page < CODE_PAGES; page++) {
        unsigned found = *(volatile unsigned *)counter_of(page);
        if (step && found != last[page]) {
            printf("page %u holds %u instead of %u\n", page, found, last[page]);
            fault("what it has patched");
        }
        last[page] = found;
    }
    unsigned page = step++ * 397 % CODE_PAGES;
    // No byte of the counter looks like a breakpoint or a call.
    unsigned count = (step & 0x7f) | (step << 1 & 0x7f00) | (step << 2 & 0x7f0000);
    char *start = scattered_code + 4096 * page;
    if (mprotect(start, 4096, PROT_READ | PROT_WRITE)) return fault("mprotect of code");
    *(volatile unsigned *)counter_of(page) = last[page] = count;
    if (mprotect(start, 4096, PROT_READ | PROT_EXEC)) return fault("mprotect of code");
    // Long enough for some lifts to succeed in between.
    usleep(step * 7919u % 20000);
}

/* mounts and credentials */

static void change_mounts(void) {
    static unsigned step;
    const char *place = step++ % 2 ? "/proc" : "/tmp";
    if (mount("none", place, "tmpfs", 0, NULL)) return fault("mount");
    rest();
    if (umount2(place, MNT_DETACH)) fault("umount");
    // The kernel limits the depth of nested namespaces, but not the number of successive ones.
    if (step % 16 == 0 && unshare(CLONE_NEWNS)) fault("unshare");
}

static void change_credentials(void) {
    static unsigned step;
    uid_t other = step++ % 2 ? 65534 : 65533;
    if (setresgid(-1, other, 0) || setresuid(-1, other, 0)) fault("setresuid");
    rest();
    if (prctl(PR_SET_DUMPABLE, step % 2, 0, 0, 0)) fault("dumpable");
    if (setresuid(-1, 0, 0) || setresgid(-1, 0, 0)) fault("setresuid back");
    if (prctl(PR_SET_KEEPCAPS, step % 2, 0, 0, 0)) fault("keep capabilities");
}

int main(int number, char **words) {
    if (number < 2) return 2;
    what = words[1];
    right = run_code();
    int first = number == 2;
    if (!strcmp(what, "mounts") && (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))) return 3;
    if (first) printf("ready\n");
    fflush(stdout);
    if (!strcmp(what, "exec")) exec_again(first ? "0" : words[2]);
    else
        while (!is_told_to_end()) {
            if (!strcmp(what, "fork")) one_child(0);
            else if (!strcmp(what, "filters")) one_child(1);
            else if (!strcmp(what, "maps")) change_maps();
            else if (!strcmp(what, "patches")) patch_code();
            else if (!strcmp(what, "mounts")) change_mounts();
            else if (!strcmp(what, "credentials")) change_credentials();
            else return 2;
            check();
        }
    puts(wrong ? "something was wrong" : "nothing was wrong");
    return wrong != 0;
}
