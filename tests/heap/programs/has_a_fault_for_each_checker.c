// Has the fault that its argument names, for the tool that it was built for: a write behind a block (address), two
// threads that write to a variable (thread), a lost block (leak).
//
// build: gcc -g -O0 -pthread -o $OUT $SRC
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int shared;

static void *writes(void *unused) {
    for (int i = 0; i < 1000; i++) shared++;
    return unused;
}

static void loses(void) {
    volatile char *block = malloc(1234);
    block[0] = 1;
    block = NULL;
}

int main(int argc, char **argv) {
    const char *fault = argc > 1 ? argv[1] : "";
    char *volatile block = malloc(100);
    memset(block, 1, 100);
    if (!strcmp(fault, "address")) block[100] = 1;
    if (!strcmp(fault, "leak")) loses();
    if (!strcmp(fault, "thread")) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, writes, NULL);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    }
    free(block);
    puts("well");
    return 0;
}
