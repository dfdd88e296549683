// Traces a child that requests it, and one that it seizes, like debuggers.
//
// build: gcc -g -O1 -o $OUT $SRC
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int status;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(errno);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) printf("TRACEME: %s\n", strerror(WEXITSTATUS(status)));
    if (WIFSTOPPED(status)) {
        printf("the child is traced\n");
        ptrace(PTRACE_DETACH, child, 0, 0);
        waitpid(child, &status, 0);
    }
    child = fork();
    if (child < 0) return 1;
    if (child == 0) pause();
    printf("SEIZE: %s\n", ptrace(PTRACE_SEIZE, child, 0, 0) ? strerror(errno) : "done");
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 0;
}
