// A library that replaces fork, and a program that is linked with it: its fork is called once.
//
// The test builds both: the library with -DLIBRARY.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY
int forks;

pid_t fork(void) {
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    forks++;
    return next();
}
#else
extern int forks;

int main(void) {
    free(malloc(5));
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status;
    return waitpid(child, &status, 0) == child && status == 0 && forks == 1 ? 0 : 1;
}
#endif
