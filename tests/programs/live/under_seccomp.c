// May only read, write and end itself, by a filter that kills it for every other call, or with a word by seccomp's strict
// mode; after a line of input it runs its code and says whether it was right.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -D_GNU_SOURCE -o $OUT $SRC
#define CODE_PAGES 1700
#include "../support/ranges.h"
#include "../support/ready.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int filter(void) {
    struct sock_filter allowed[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
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

int main(int count, char **words) {
    (void)words;
    uint64_t wanted = run_code();
    printf("confined\n");
    fflush(stdout);
    if (count > 1 ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) : filter()) return 1;
    // What ready() writes is in no buffer of its own now.
    ready();
    const char *text = run_code() == wanted ? "all right\n" : "wrong\n";
    syscall(SYS_write, 1, text, strlen(text));
    syscall(SYS_exit, 0);
}
