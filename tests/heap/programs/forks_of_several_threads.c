// Several threads fork at once, and one fork takes long: a handler around the first fork, which runs while the heap's locks
// are held, lasts longer than a thread waits for its turn. The other forks wait for it. All processes can
// allocate afterwards: large blocks, and small ones until a new arena is needed. A handler may also fork by itself. The
// handlers are registered without the heap's knowledge, so that they run after the heap's.
//
//   forks_of_several_threads ROUNDS THREADS
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 100, MOST_THREADS = 16, LARGE = 9 << 20, SMALL = 40 << 20, BLOCK = 30000, SLOW_MS = 1500 };

static __thread int is_slow, forks_in_handler;
static volatile int slow_has_begun, others_left, threads;
static pid_t nested;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

static void await_end(pid_t child, const char *what) {
    int status;
    if (waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "the child of %s ended with status %#x\n", what, status);
        _exit(2);
    }
}

/* Large blocks, and more small ones than an arena holds. */
static void allocate(void) {
    static __thread char *blocks[SMALL / BLOCK];
    for (int i = 0; i < 3; i++) free(memset(malloc(LARGE), i, LARGE));
    for (int i = 0; i < SMALL / BLOCK; i++) memset(blocks[i] = malloc(BLOCK), i, BLOCK);
    for (int i = 0; i < SMALL / BLOCK; i++) free(blocks[i]);
}

static void use_and_exit(void) {
    alarm(SECONDS);
    allocate();
    pid_t child = fork();
    if (child == 0) {
        allocate();
        _exit(0);
    }
    if (child < 0) fail("a child's fork");
    await_end(child, "a child");
    _exit(0);
}

/* Registered before the heap's own handlers, so that it runs after them. */
static void before(void) {
    if (forks_in_handler) {
        forks_in_handler = 0;
        nested = fork();
        if (nested == 0) use_and_exit();
    }
    if (is_slow) {
        slow_has_begun = 1;
        for (int waited = 0; others_left && waited < SLOW_MS; waited++) poll(NULL, 0, 1);
    }
}

static void register_first(void) {
    void *library = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    int (*of_library)(void (*)(void), void (*)(void), void (*)(void), void *) = dlsym(library, "__register_atfork");
    if (of_library(before, NULL, NULL, NULL)) fail("__register_atfork");
}

__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = register_first;

static void *fork_slowly(void *none) {
    is_slow = 1;
    pid_t child = fork();
    is_slow = 0;
    if (child == 0) use_and_exit();
    if (child < 0) fail("the slow fork");
    allocate();
    await_end(child, "the slow fork");
    return none;
}

static void *fork_beside(void *none) {
    while (!slow_has_begun) poll(NULL, 0, 1);
    pid_t child = fork();
    if (child == 0) use_and_exit();
    if (child < 0) fail("a fork beside the slow one");
    __atomic_fetch_sub(&others_left, 1, __ATOMIC_SEQ_CST);
    await_end(child, "a fork beside the slow one");
    allocate();
    return none;
}

int main(int count, char **words) {
    pthread_t all[MOST_THREADS];
    alarm(SECONDS);
    int rounds = count > 1 ? atoi(words[1]) : 1;
    threads = count > 2 ? atoi(words[2]) : 2;
    for (int round = 0; round < rounds; round++) {
        slow_has_begun = 0;
        others_left = threads;
        for (int i = 0; i <= threads; i++)
            if (pthread_create(&all[i], NULL, i ? fork_beside : fork_slowly, NULL)) fail("pthread_create");
        for (int i = 0; i <= threads; i++) pthread_join(all[i], NULL);
        allocate();
    }
    forks_in_handler = 1;
    pid_t child = fork();
    if (child == 0) use_and_exit();
    if (child < 0 || nested < 0) fail("a fork in a handler");
    await_end(nested, "a fork in a handler");
    await_end(child, "a fork with one in its handler");
    allocate();
    printf("forked %d\n", rounds);
    return 0;
}
