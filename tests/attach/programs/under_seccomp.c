// May only read, write and exit: a filter kills it for every other call. Its argument changes that:
//
//   strict  seccomp's strict mode instead of a filter
//   lift    also permits the calls of a lift by transparent huge pages and of a restore
//   one     only the first thread has the filter; a second thread sleeps repeatedly
//
// After a line of input it runs its code and reports whether the result was right.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -D_GNU_SOURCE -pthread -o $OUT $SRC
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

static int filter(int lift) {
    const unsigned more = lift ? 0 : 0x10000;
    struct sock_filter allowed[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        // If these calls are not allowed, the numbers belong to no call.
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat + more, 12, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close + more, 11, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap + more, 10, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap + more, 9, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect + more, 8, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap + more, 7, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise + more, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask + more, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof allowed / sizeof *allowed, allowed};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static atomic_int stop;

/* Ends the process: the first thread may only end itself. */
static void *free_one(void *unused) {
    struct timespec a_while = {0, 1000 * 1000};
    while (!stop) nanosleep(&a_while, 0);
    _exit(0);
    return unused;
}

int main(int count, char **words) {
    uint64_t wanted = run_code();
    int one = count > 1 && !strcmp(words[1], "one");
    pthread_t other;
    if (one && pthread_create(&other, 0, free_one, 0)) return 1;
    printf("confined\n");
    fflush(stdout);
    int strict = count > 1 && !strcmp(words[1], "strict"), lift = count > 1 && !strict && !one;
    if (strict ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) : filter(lift)) return 1;
    // The output above has allocated the buffer that ready() uses.
    ready();
    const char *text = run_code() == wanted ? "all right\n" : "wrong\n";
    syscall(SYS_write, 1, text, strlen(text));
    stop = 1;
    syscall(SYS_exit, 0);
}
