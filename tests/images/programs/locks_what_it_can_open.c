// Opens every readable file below its arguments, takes a shared lock on each, and holds the locks until a line of
// input. First prints their number.
#define _GNU_SOURCE
#include "ready.h"
#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>

static int locked;

static int take(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)found, (void)kind, (void)place;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    if (file >= 0 && flock(file, LOCK_SH | LOCK_NB) == 0) locked++;
    return 0;
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) nftw(arguments[i], take, 16, FTW_PHYS);
    printf("%d locked\n", locked);
    ready();
    return 0;
}
