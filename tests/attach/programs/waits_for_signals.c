// Waits in one call repeatedly, and prints how each wait has ended, and each handled signal. SIGUSR1 restarts calls
// that can be restarted (SA_RESTART), SIGUSR2 does not.
//
// build: gcc -g -O1 -fPIE -pie -pthread -o $OUT $SRC
// argument: epoll_wait, pause or read, of standard input; "end" or the end of input ends it.
#define _GNU_SOURCE
#define CODE_PAGES 1700
#include "ranges.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static volatile sig_atomic_t ending;

static void handler(int signal) {
    int error = errno;
    const char *text = signal == SIGUSR1 ? "handled SIGUSR1\n" : "handled SIGUSR2\n";
    if (signal == SIGTERM) ending = 1;
    else if (write(1, text, strlen(text)) < 0) _exit(3);
    errno = error;
}

static int wait_in(const char *call, int epoll) {
    struct epoll_event event;
    char byte;
    if (!strcmp(call, "epoll_wait")) return epoll_wait(epoll, &event, 1, -1);
    if (!strcmp(call, "pause")) return pause();
    return (int)read(0, &byte, 1);
}

int main(int count, char **words) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    int epoll = epoll_create1(0);
    if (count != 2) return 2;
    run_code();
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = handler}, 0);
    sigaction(SIGUSR2, &(struct sigaction){.sa_handler = handler}, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("ready\n");
    while (!ending) {
        int result = wait_in(words[1], epoll);
        if (result == 0) break;
        printf("%s ended: %d, %s\n", words[1], result, result < 0 ? strerror(errno) : "no error");
    }
    printf("the end\n");
    return 0;
}
