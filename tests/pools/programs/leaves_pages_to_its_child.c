// A process that ends while its child keeps its private pages of the pool, until standard input is closed. With an argument
// it maps no such pages; a lift gives it some for its code.
// expect: exit 0; "ready" from the child
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 4 << 21 };

__attribute__((noinline)) static int much_code(int number) {
    if (number > 1000000) return 0;
    __asm__ volatile(".skip 9000000, 0x90");
    return number;
}

static int maps_pages(void) {
    char *pages = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (pages == MAP_FAILED) return 0;
    memset(pages, 1, BYTES);
    return 1;
}

int main(int count, char **words) {
    (void)words;
    int ended[2];
    char byte;
    if (much_code(count) != count || pipe(ended) != 0 || (count == 1 && !maps_pages())) return 2;
    pid_t child = fork();
    if (child != 0) return child < 0 ? 3 : 0;
    // The parent's last descriptor of the pipe is closed after its memory is gone.
    close(ended[1]);
    if (read(ended[0], &byte, 1) != 0) return 4;
    puts("ready");
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 5;
}
