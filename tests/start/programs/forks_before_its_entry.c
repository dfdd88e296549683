// A constructor forks, and both processes continue to main: the child is not a starting program.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIC -shared -DLIBRARY -o $BUILD/libforks.so $SRC
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -lforks -Wl,-rpath,$BUILD
// expect: lifted text
#ifdef LIBRARY
#include <unistd.h>
int child;
__attribute__((constructor)) static void start(void) { child = fork(); }
#else
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"
#include <sys/auxv.h>
#include <sys/wait.h>

extern int child;
extern char _start[];

int main(void) {
    if (getauxval(AT_ENTRY) != (unsigned long)_start) return 2;
    if (child == 0) {
        check_ranges(0);
        return 3;
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 4;
    printf("the child has ended with %d\n", WEXITSTATUS(status));
    ready();
    check_ranges(0);
    return 0;
}
#endif
