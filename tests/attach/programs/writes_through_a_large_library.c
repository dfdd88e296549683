// Preloaded: each write of the program first runs all of a large code, and ends the program if the result is wrong.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -shared -fPIC -o $OUT $SRC
#define CODE_PAGES 1700
#include "ranges.h"
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t wanted;

__attribute__((constructor)) static void remember(void) { wanted = run_code(); }

ssize_t write(int fd, const void *bytes, size_t count) {
    if (wanted && run_code() != wanted) abort();
    return syscall(SYS_write, fd, bytes, count);
}
