// A shared object's constructor has installed a seccomp filter, as preloaded sandboxes do: for the calls in $REFUSES,
// separated by commas, it takes the action $ACTION. Without these variables, the program is killed for the calls by
// which Pagelift signals the end of a call.
//
// build: gcc -g -O1 -fPIC -shared -DLIBRARY -o $BUILD/libsandbox.so $SRC
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -lsandbox -Wl,-rpath,$BUILD
// pages: thp
// expect: unlifted its seccomp filter does not let it call
#ifdef LIBRARY
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 16

struct named {
    const char *name;
    unsigned value;
};

static const struct named actions[] = {{"kill", SECCOMP_RET_KILL_PROCESS}, {"trap", SECCOMP_RET_TRAP},
    {"errno", SECCOMP_RET_ERRNO | 1}, {"notify", SECCOMP_RET_USER_NOTIF}, {"trace", SECCOMP_RET_TRACE}, {0}};
static const struct named calls[] = {{"rt_sigprocmask", SYS_rt_sigprocmask}, {"getpid", SYS_getpid},
    {"gettid", SYS_gettid}, {"tgkill", SYS_tgkill}, {"munmap", SYS_munmap}, {"mremap", SYS_mremap}, {0}};

static unsigned value_of(const struct named *table, const char *name) {
    for (; table->name; table++)
        if (!strcmp(table->name, name)) return table->value;
    _exit(98);
}

__attribute__((constructor)) static void confine(void) {
    const char *action = getenv("ACTION"), *refused = getenv("REFUSES");
    unsigned answer = value_of(actions, action ? action : "kill");
    char names[200] = "rt_sigprocmask,getpid,gettid,tgkill";
    if (refused) strncpy(names, refused, sizeof names - 1);
    struct sock_filter filter[2 + 2 * MOST];
    unsigned short length = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value_of(calls, name), 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(99);
}
#else
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"

int main(void) {
    ready();
    check_ranges(0);
    return 0;
}
#endif
