// Has a seccomp filter on all threads that makes mkdir fail with EPERM. During a lift one thread replaces every call
// that another is to make by mkdir. At the end the program reports whether the folder of its first argument was made.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include "call_page.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static volatile int replaced;
static char *folder;

static int confine(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mkdir, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void *replace_calls(void *unused) {
    uint64_t arguments[2] = {(uintptr_t)folder, 0700};
    for (;;) {
        uintptr_t page = find_call_page();
        for (int done = 0; page && done >= 0; replaced += done > 0) done = replace_call(page, SYS_mkdir, arguments, 2);
    }
    return unused;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    folder = words[1];
    if (confine()) return 3;
    pthread_t thread;
    if (pthread_create(&thread, NULL, replace_calls, NULL)) return 4;
    ready();
    uint64_t sum = run_code();
    struct stat found;
    printf("%d calls replaced; %s\n", replaced, stat(folder, &found) == 0 ? "gained: the folder is there" : "still confined");
    return sum == 0;
}
