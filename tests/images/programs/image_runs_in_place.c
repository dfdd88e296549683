// Maps an image of itself over its own code, by one mmap of whole huge pages as a lift does, and calls a function in
// the image until its input ends, for at least a second of CPU time.
//
// Arguments: the image, an offset in it, an address, a length.
// build: gcc -g -O1 -fno-toplevel-reorder -fno-pie -no-pie -Wl,-z,noseparate-code -o $OUT $SRC
#define _GNU_SOURCE
#include "ready.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* More than two huge pages of code around the function that is called. */
__asm__(".text\n .rept 1310720\n nop\n .endr\n");

__attribute__((noinline)) long spin_in_the_image(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum = sum * 3 + i;
    return sum;
}

__asm__(".text\n .rept 3145728\n nop\n .endr\n");

int main(int count, char **arguments) {
    (void)count;
    int image = open(arguments[1], O_RDONLY);
    unsigned long address = strtoul(arguments[3], 0, 0), length = strtoul(arguments[4], 0, 0);
    void *mapped = mmap((void *)address, length, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, image,
                        strtol(arguments[2], 0, 0));
    if (image < 0 || mapped != (void *)address) return 1;
    ready();
    long sum = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    alarm(200); /* in case nothing else ends it */
    while (clock() < CLOCKS_PER_SEC || poll(&input, 1, 0) == 0) sum += spin_in_the_image(100000);
    printf("done %d\n", sum != 0);
    return 0;
}
