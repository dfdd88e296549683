// Makes the folder of its first argument its root folder, becomes the user of its second, and waits for a line. Run by
// root.
//
// build: gcc -O1 -Wall -o $OUT $SRC
#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int user = atoi(argv[2]);
    if (chroot(argv[1]) || chdir("/") || setgroups(0, NULL) || setgid(user) || setuid(user)) {
        perror(argv[0]);
        return 1;
    }
    puts("ready");
    fflush(stdout);
    char line[16];
    return fgets(line, sizeof line, stdin) == NULL;
}
