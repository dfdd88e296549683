// Has the symbols by which Python is recognised, reads PYTHONMALLOC as Python does, and prints how often its child
// finds the variable.
//
// build: gcc -g -O1 -Wall -rdynamic -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>

void Py_BytesMain(void) {}
#ifdef FREE_THREADED
void _Py_DecRefShared(void) {}
#endif

int main(void) {
    const char *value = getenv("PYTHONMALLOC");
    printf("%s ", value ? value : "nothing");
    fflush(stdout);
    return system("env | grep -c ^PYTHONMALLOC=; true");
}
