// In a preloaded program that was started under a seccomp filter, loaded objects are lifted until it installs another
// filter. That filter kills the program for calls that only a lift makes; the program then loads an object, uses it and
// continues.
//
// link: preload
// plugin: plugin.c
// env: PAGELIFT=only=leaves_objects_alone_under_a_filter pages=thp lift=text,rodata quiet
// needs: thp
// needs: kernel 5.9
#include "support.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const int lifting[] = { SYS_process_vm_readv, SYS_mremap, SYS_prctl, SYS_madvise, SYS_rt_sigprocmask, SYS_gettid,
                               SYS_statx, SYS_getdents64, SYS_ioctl, SYS_uname };
enum { CALLS = sizeof lifting / sizeof lifting[0] };

// Installs a filter that kills the process for the first `count` of these calls.
static void install(int count)
{
    struct sock_filter code[2 * CALLS + 2];
    int length = 0;
    code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int index = 0; index < count; index++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, lifting[index], 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { .len = length, .filter = code };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

static size_t load(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW);
    if (!handle) fail("%s", dlerror());
    int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
    void *(*start)(void) = (void *(*)(void))dlsym(handle, "plugin_start");
    CHECK(call && start);
    for (int index = 0; index < 1536; index += 17) CHECK(call(index) == index);
    return huge_bytes(start(), 1536 * 4096, NULL);
}

int main(int count, char **arguments)
{
    if (count == 1) {
        install(0);
        execl("/proc/self/exe", arguments[0], "again", NULL);
        fail("exec: %s", strerror(errno));
    }
    CHECK(system("cp plugin.so later.so") == 0);
    CHECK(load("./plugin.so") >= 4 << 20);
    install(CALLS);
    CHECK(load("./later.so") == 0);
    check_all();
    puts("ok");
    return 0;
}
