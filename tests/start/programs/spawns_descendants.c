// Starts the program named by its arguments in every possible way, one after the other, and prints how each one ended.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char **child;

static void end_of(const char *way, pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    printf("%s: status %x\n", way, status);
    fflush(stdout);
}

static void *executes(void *unused) {
    (void)unused;
    execv(child[0], child);
    return NULL;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    child = arguments + 1;
    pid_t pid = fork();
    if (pid == 0) _exit((execv(child[0], child), 120));
    end_of("fork", pid);

    pid = vfork();
    if (pid == 0) _exit((execv(child[0], child), 120));
    end_of("vfork", pid);

    posix_spawn(&pid, child[0], NULL, NULL, child, environ);
    end_of("posix_spawn", pid);

    fflush(stdout);
    printf("system: status %x\n", system(child[0]));
    fflush(stdout);

    pid = fork();
    if (pid == 0) { /* a grandchild whose parent is gone before it executes */
        int alive[2];
        if (pipe(alive) < 0) _exit(121);
        if (fork() > 0) {
            char c;
            close(alive[1]);
            _exit(read(alive[0], &c, 1) == 0 ? 0 : 122); /* waits for the grandchild's end */
        }
        close(alive[0]);
        _exit((execv(child[0], child), 120));
    }
    end_of("grandchild", pid);

    pid = fork();
    if (pid == 0) { /* a thread that is not the first one executes: it takes over the process's number */
        pthread_t thread;
        pthread_create(&thread, NULL, executes, NULL);
        pthread_join(thread, NULL);
        _exit(120);
    }
    end_of("thread", pid);
    return 0;
}
