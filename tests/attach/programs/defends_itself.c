// Does something that a lift must not meet: the program must stay as it is, whether it is lifted or not. It ends when it
// reads a line.
//
//   defends_itself dispatch     has its system calls raise SIGSYS (Syscall User Dispatch), as Wine does
//   defends_itself unload       loads and unloads a small library all the time, and handles SIGSEGV
//   defends_itself unmap        unmaps each page that it does not know
//   defends_itself executable   has a personality by which all memory is executable
//   defends_itself preloaded    handles the calls by a library in LD_PRELOAD, which has begun that before the start
//
// build: gcc -g -O1 -Wall -DLIBRARY -shared -fPIC -o $BUILD/libdefends.so $SRC
// build: gcc -g -O1 -Wall -fPIE -pie -pthread -o $OUT $SRC -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

/* 0: calls are made; 1: they raise SIGSYS. */
static volatile char selector;
static volatile long dispatched;

/* Makes the call that was dispatched. Its own calls, and those after it, are made. */
static void dispatch(int signal, siginfo_t *information, void *context) {
    (void)signal, (void)information;
    selector = 0;
    dispatched++;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    r[REG_RAX] = syscall(r[REG_RAX], r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);
}

static int begin_to_dispatch(void) {
    struct sigaction action = {.sa_sigaction = dispatch, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    return prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector);
}

#ifdef LIBRARY
__attribute__((constructor)) static void begin(void) {
    if (getenv("DEFENDS_BEFORE_START") && !begin_to_dispatch()) selector = 1;
}

int small_function(int number) { return number + 1; }
#else

__asm__(".section .text.large,\"ax\",@progbits\n.globl large\nlarge:\n.fill 6291456, 1, 0x90\nret\n.previous\n");

static char library[4096];
static volatile int unloaded;

static void *load_and_unload(void *unused) {
    for (;;) {
        void *loaded = dlopen(library, RTLD_NOW);
        int (*function)(int) = (int (*)(int))dlsym(loaded, "small_function");
        if (function(3) != 4) abort();
        usleep(3000);
        dlclose(loaded);
        unloaded = 1;
        usleep(200);
    }
    return unused;
}

enum { MOST = 4096 };
static struct {
    unsigned long known[MOST];
    int count;
    char text[1 << 16];
} pages;

/* Unmaps anonymous mappings of one page that were not there at the first call. */
static void unmap_unknown(int is_first) {
    int file = open("/proc/self/maps", O_RDONLY), length = 0, more;
    while ((more = read(file, pages.text + length, sizeof pages.text - 1 - length)) > 0) length += more;
    close(file);
    pages.text[length] = 0;
    for (char *line = strtok(pages.text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end;
        char access[8];
        int is_known = 0, named = strchr(line, '/') || strchr(line, '[');
        if (sscanf(line, "%lx-%lx %7s", &start, &end, access) != 3 || named || strcmp(access, "rw-p")) continue;
        if (end - start != (unsigned long)sysconf(_SC_PAGESIZE)) continue;
        for (int i = 0; i < pages.count; i++) is_known |= pages.known[i] == start;
        if (is_known) continue;
        if (is_first && pages.count < MOST) pages.known[pages.count++] = start;
        if (!is_first) munmap((void *)start, end - start);
    }
}

static void *unmap(void *unused) {
    for (;;) {
        unmap_unknown(0);
        usleep(50);
    }
    return unused;
}

static void crashed(int signal) { _exit(signal + 100); }

int main(int count, char **words) {
    pthread_t thread;
    const char *what = count > 1 ? words[1] : "";
    struct sigaction action = {.sa_handler = crashed};
    int dispatches = !strcmp(what, "dispatch");
    if (dispatches && begin_to_dispatch()) return 77;
    if (!strcmp(what, "unload")) {
        snprintf(library, sizeof library, "%s/libdefends.so", words[2]);
        sigaction(SIGSEGV, &action, NULL);
        pthread_create(&thread, NULL, load_and_unload, NULL);
        // The thread has its memory by then.
        while (!unloaded) usleep(1000);
    }
    if (!strcmp(what, "unmap")) {
        unmap_unknown(1);
        pthread_create(&thread, NULL, unmap, NULL);
    }
    if (!strcmp(what, "executable")) personality(READ_IMPLIES_EXEC);
    printf("ready\n");
    fflush(stdout);
    for (struct pollfd input = {.fd = 0, .events = POLLIN}; poll(&input, 1, 1) == 0;) {
        if (!dispatches) continue;
        long before = dispatched;
        selector = 1;
        for (volatile long i = 0; i < 10000000; i++)
            ;
        if (syscall(SYS_getppid) != getppid() || dispatched != before + 1) abort();
    }
    printf("all right\n");
    return 0;
}
#endif
