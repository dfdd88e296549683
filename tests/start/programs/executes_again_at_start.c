// Replaces itself by another program (itself, with an argument) before its entry point.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: exit 7
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "early.h"
#include "ranges.h"
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

static void again(int count, char **arguments) {
    char *next[] = {arguments[0], "again", NULL};
    if (count == 1) execve("/proc/self/exe", next, environ);
}

BEFORE_ENTRY(again);

int main(int count, char **arguments) {
    printf("%d arguments, the last is %s\n", count, arguments[count - 1]);
    check_ranges(0);
    return 7;
}
