// The reason for the guard: a child of a raw clone, which runs no handlers, is killed by SIGBUS if the pool is empty.
// If this test fails one day, the kernel has improved and the guard can be simplified.
//
// link: shared
// needs: pool 64M
#include "fork.h"
#include <sys/syscall.h>

int main(void)
{
    lift_writable();
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        big_bss[BSS_BYTES / 2] = 2;
        syscall(SYS_exit_group, 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CHECK(bss_is(1));
    puts("ok");
    return 0;
}
