// Sets up one or more conditions of a start, or restrictions, and executes the command after `--`.
//
//   closed=FD  open=FD  block=SIGNAL  ignore=SIGNAL  umask=OCTAL  limit=RESOURCE:SOFT:HARD  nice=N  alarm=SECONDS
//   refuse=SYSCALL:ERRNO (seccomp; several add up)  mdwe  no-new-privileges  no-thp  new-session  subreaper  death-signal=N  memory-node=N
//
// build: gcc -g -O1 -Wall -o $OUT $SRC
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(120);
    }
}

static const struct {
    const char *name;
    int number;
} calls[] = {{"mmap", SYS_mmap},         {"mremap", SYS_mremap},   {"madvise", SYS_madvise},
             {"mprotect", SYS_mprotect}, {"ptrace", SYS_ptrace},   {"process_madvise", 440},
             {"prctl", SYS_prctl},       {"munmap", SYS_munmap},   {"process_vm_readv", SYS_process_vm_readv},
             {"process_vm_writev", SYS_process_vm_writev},         {"memfd_create", SYS_memfd_create},
             {"userfaultfd", SYS_userfaultfd}};

/* Each refused call gets a separate filter. */
static void refuse(char *text) {
    char *name = strtok(text, ":"), *error = strtok(NULL, ":");
    int number = -1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i].name, name)) number = calls[i].number;
    if (number < 0 || !error) {
        fprintf(stderr, "cannot refuse %s\n", name);
        exit(120);
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (atoi(error) & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "seccomp");
}

static void limit(char *text) {
    int resource = atoi(strtok(text, ":"));
    struct rlimit limit = {.rlim_cur = strtoull(strtok(NULL, ":"), NULL, 0)};
    limit.rlim_max = strtoull(strtok(NULL, ":"), NULL, 0);
    must(setrlimit(resource, &limit), "setrlimit");
}

static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    must(sigprocmask(SIG_BLOCK, &set, NULL), "sigprocmask");
}

static void apply(char *word) {
    char *value = strchr(word, '=');
    if (value) *value++ = 0;
    int number = value ? atoi(value) : 0;
    if (!strcmp(word, "closed")) close(number);
    else if (!strcmp(word, "open")) must(dup2(open("/dev/zero", O_RDWR), number), "dup2");
    else if (!strcmp(word, "block")) block(number);
    else if (!strcmp(word, "ignore")) signal(number, SIG_IGN);
    else if (!strcmp(word, "umask")) umask(strtol(value, NULL, 8));
    else if (!strcmp(word, "limit")) limit(value);
    else if (!strcmp(word, "nice")) must(setpriority(PRIO_PROCESS, 0, number), "nice");
    else if (!strcmp(word, "alarm")) alarm(number);
    else if (!strcmp(word, "refuse")) refuse(value);
    else if (!strcmp(word, "mdwe")) must(prctl(65, 1, 0, 0, 0), "PR_SET_MDWE");
    else if (!strcmp(word, "no-new-privileges")) must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    else if (!strcmp(word, "no-thp")) must(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "PR_SET_THP_DISABLE");
    else if (!strcmp(word, "new-session")) setsid();
    else if (!strcmp(word, "subreaper")) must(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper");
    else if (!strcmp(word, "memory-node")) {
        unsigned long mask = 1ul << number;
        must(syscall(SYS_set_mempolicy, 2 /* MPOL_BIND */, &mask, 8 * sizeof mask), "set_mempolicy");
    }
    else if (!strcmp(word, "death-signal")) must(prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "death signal");
    else {
        fprintf(stderr, "unknown word %s\n", word);
        exit(120);
    }
}

int main(int count, char **arguments) {
    int next = 1;
    while (next < count && strcmp(arguments[next], "--")) apply(arguments[next++]);
    if (next + 1 >= count) return 120;
    execvp(arguments[next + 1], arguments + next + 1);
    return 121;
}
