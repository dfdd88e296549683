// Forks while another thread holds a lock of the heap for longer than a fork waits: the heap calls an observer in this
// program after locking, and the other thread waits there until the fork has ended. Each child adds an arena, uses
// large blocks, and returns its free memory to the kernel, as if the other thread had held no lock.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SECONDS = 60, LOCKED = 0, MIB = 1 << 20, COUNT = 200 };
enum { NO_MEMORY = 3, NOT_RETURNED };

/* Number of locks that this thread takes until it stops; 0 if it does not stop. */
static __thread volatile int locks_until_stop;
static sem_t stopped, forked;

static void observe(int moment) {
    if (moment != LOCKED || locks_until_stop == 0 || --locks_until_stop > 0)
        return;
    sem_post(&stopped);
    while (sem_wait(&forked)) {
    }
}

static long resident_mib(void) {
    long all, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2)
        abort();
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE) / MIB;
}

/* Allocates and frees more small blocks than an arena holds. Returns the resident MiB before the blocks were freed; 0
   if there is no memory. */
static long use_small_blocks(void) {
    static char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        if (!(blocks[i] = malloc(MIB)))
            return 0;
        memset(blocks[i], 1, MIB);
    }
    long resident = resident_mib();
    for (int i = 0; i < COUNT; i++)
        free(blocks[i]);
    return resident;
}

/* Adds an arena. Returns false if there is no memory. */
static int use_more_than_is_free(void) {
    for (int i = 0; i < 2 * COUNT; i++)
        if (!malloc(MIB))
            return 0;
    return 1;
}

static int child(void) {
    /* If the child waits for a lock, this ends it. */
    alarm(CHILD_SECONDS);
    if (!use_more_than_is_free())
        return NO_MEMORY;
    char *large = malloc(9 * MIB);
    long before = use_small_blocks();
    if (!large || before == 0)
        return NO_MEMORY;
    free(large);
    malloc_trim(0);
    return before - resident_mib() >= COUNT / 2 ? 0 : NOT_RETURNED;
}

static void trim(void) { malloc_trim(0); }
static void use_large_block(void) { free(malloc(9 * MIB)); }
static void add_arena(void) {
    if (!use_more_than_is_free())
        abort();
}

/* A use of the heap, and the number of its lock with which it stops. */
struct use {
    void (*function)(void);
    int lock;
};

static void *use_heap(void *argument) {
    struct use *use = argument;
    if (!use_small_blocks())
        abort();
    locks_until_stop = use->lock;
    use->function();
    if (locks_until_stop > 0) {
        fprintf(stderr, "fewer than %d locks are taken\n", use->lock);
        abort();
    }
    return NULL;
}

int main(void) {
    static struct use uses[] = {{trim, 1}, {trim, 2}, {trim, 3}, {use_large_block, 1}, {add_arena, 1}, {add_arena, 2}};
    int count = sizeof uses / sizeof *uses;
    void (**observer)(int) = (void (**)(int))dlsym(RTLD_DEFAULT, "pagelift_heap_observer");
    if (!observer) {
        fprintf(stderr, "the heap is not there\n");
        return 1;
    }
    sem_init(&stopped, 0, 0);
    sem_init(&forked, 0, 0);
    *observer = observe;
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        int status;
        if (pthread_create(&thread, NULL, use_heap, &uses[i]))
            abort();
        while (sem_wait(&stopped)) {
        }
        pid_t process = fork();
        if (process < 0) {
            perror("fork");
            abort();
        }
        if (process == 0)
            _exit(child());
        sem_post(&forked);
        pthread_join(thread, NULL);
        if (waitpid(process, &status, 0) != process || status != 0) {
            fprintf(stderr, "child %d ended with status %#x\n", i, status);
            abort();
        }
    }
    printf("forked %d\n", count);
    return 0;
}
