// A library that adds a line to a file, with the user that has loaded it: no other user may load a library of a user's
// environment.
//
// build: gcc -g -O1 -Wall -shared -fPIC -o $OUT $SRC

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void)
{
    const char *path = getenv("WHO_HAS_LOADED");
    int file = path ? open(path, O_WRONLY | O_APPEND) : -1;
    char line[32];
    int length = snprintf(line, sizeof line, "user %d\n", (int)geteuid());
    if (file >= 0 && write(file, line, length) == length)
        close(file);
}
