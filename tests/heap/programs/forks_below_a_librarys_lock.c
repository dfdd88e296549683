// A library takes its own lock around forks, by handlers that its constructor registers, and allocates under the lock:
// one thread allocates all the time, and another one forks. There is no deadlock, and children use the lock and the
// heap. The program and the library also have data, which may be on huge pages.
//
//   forks_below_a_librarys_lock FORKS
//
// build: gcc -g -O1 -Wall -fno-builtin -fPIC -shared -DLIBRARY -o $BUILD/library.so $SRC -lpthread
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC $BUILD/library.so -lpthread
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 16 << 20, DATA = 8 << 20, PAGE = 4096, SECONDS = 200, CHILD_SECONDS = 60 };

void work(void);

#ifdef LIBRARY

static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) {
    pthread_mutex_lock(&own);
}

static void unlock(void) {
    pthread_mutex_unlock(&own);
}

/* Initialised before all other objects of the program. */
__attribute__((constructor)) static void begin(void) {
    pthread_atfork(lock, unlock, unlock);
}

void work(void) {
    lock();
    free(malloc(LARGE));
    unlock();
}

#else

static volatile int ended;
static char data[DATA];

/* True if the whole array holds `value`; then writes another value. */
static int was(char value) {
    for (int at = 0; at < DATA; at += PAGE)
        if (data[at] != value) return 0;
    memset(data, value + 1, DATA);
    return 1;
}

static void *work_all_the_time(void *none) {
    while (!ended) work();
    return none;
}

int main(int count, char **words) {
    pthread_t worker;
    int forks = count > 1 ? atoi(words[1]) : 1000;
    memset(data, 1, DATA);
    alarm(SECONDS);
    if (pthread_create(&worker, NULL, work_all_the_time, NULL)) abort();
    for (int i = 0; i < forks; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_SECONDS);
            work();
            _exit(was(1) && was(2) ? 0 : 2);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status) {
            fprintf(stderr, "fork %d of %d failed\n", i + 1, forks);
            return 1;
        }
    }
    ended = 1;
    pthread_join(worker, NULL);
    printf("forked %d\n", forks);
    return 0;
}

#endif
