// Repeatedly runs code on CODE_PAGES pages and writes HEAP pages (first argument) and SHARED_PAGES pages of shared
// memory, in an order without locality. As many pages of memory and of code beside these were used before, but are not
// used any more. It ends when its input does. Statically linked, since other programs can mark pages of libraries.
//
// build: gcc -g -O1 -static -o $OUT $SRC
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CODE_PAGES 3000
#define SHARED_PAGES 4000
#define PAGE 4096

/* Functions that return at once, each on a separate page; twice as many as are used. */
__asm__(".text\n.balign 4096\n.globl functions\nfunctions:\n"
        ".rept 6000\n ret\n .balign 4096\n.endr\n");
extern char functions[];

static void call(unsigned long page) { ((void (*)(void))(functions + page * PAGE))(); }

int main(int count, char **words) {
    unsigned long heap_pages = count > 1 ? strtoul(words[1], NULL, 0) : 8192;
    size_t size = 2 * heap_pages * PAGE;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t shared_size = 2ul * SHARED_PAGES * PAGE;
    char *shared = mmap(NULL, shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || shared == MAP_FAILED) return 3;
    /* The file system may hold the file in huge folios: this makes the kernel map it by small pages. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    memset(memory, 1, size);
    memset(shared, 1, shared_size);
    for (unsigned long i = 0; i < 2 * CODE_PAGES; i++) call(i);
    printf("ready\n");
    fflush(stdout);
    struct pollfd input = {0, POLLIN, 0};
    unsigned long at = 0, function = 0, beside = 0;
    /* The step has no common divisor with the number of pages, so that the loop visits every page. */
    while (poll(&input, 1, 0) == 0)
        for (unsigned long i = 0; i < heap_pages; i++) {
            at = (at + 4099) % heap_pages;
            memory[at * PAGE + 64 * (at % 60)]++;
            beside = (beside + 1009) % SHARED_PAGES;
            shared[beside * PAGE + 64 * (beside % 60)]++;
            function = (function + 1009) % CODE_PAGES;
            call(function);
        }
    return 0;
}
