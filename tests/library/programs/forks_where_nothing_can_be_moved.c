// A seccomp filter, installed after the lift, refuses to move memory: a child still finds the contents at the fork,
// with their protections. The handlers of an archive are not the first ones: its child shares the pages instead.
//
// link: shared
// needs: pool 64M
#include "fork.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void refuse_moves(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = sizeof code / sizeof code[0], .filter = code };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

int main(void)
{
    lift_writable();
    refuse_moves();
    pid_t child = fork();
    if (!child) {
        if (!bss_is(1) || !data_is(0)) _exit(1);
        memset(big_bss, 2, BSS_BYTES);
        add_to_data(7);
        _exit(bss_is(2) && data_is(7) ? 5 : 2);
    }
    expect_exit(child, 5);
    CHECK(bss_is(1) && data_is(0));
    puts("ok");
    return 0;
}
