// A user's program that mounts another folder or file over the place where perf expects the map of its code, in a
// separate mount namespace; one of its functions has a name of two lines. Run by root, in the folder to be used:
//
//     leads_its_tmp_elsewhere folder     mounts the folder over /tmp
//     leads_its_tmp_elsewhere file NAME  mounts the folder's file NAME over the map in /tmp
//
// build: gcc -O1 -o $OUT $SRC
// build: objcopy --redefine-sym code="$(printf 'first\n10 10 forged by a newline')" $OUT
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "replaceable_code.h"

enum { NOBODY = 65534 };

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void write_to(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    check(file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text), path);
    close(file);
}

static void become_a_user_with_mounts(void) {
    check(setgroups(0, NULL), "setgroups");
    check(setresgid(NOBODY, NOBODY, NOBODY), "setresgid");
    check(setresuid(NOBODY, NOBODY, NOBODY), "setresuid");
    // Otherwise /proc/self belongs to root.
    check(prctl(PR_SET_DUMPABLE, 1), "prctl");
    check(unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
    write_to("/proc/self/setgroups", "deny");
    write_to("/proc/self/uid_map", "0 65534 1");
    write_to("/proc/self/gid_map", "0 65534 1");
}

int main(int argc, char **argv) {
    char map[64];
    become_a_user_with_mounts();
    if (argc > 2 && !strcmp(argv[1], "file")) {
        snprintf(map, sizeof map, "/tmp/perf-%d.map", getpid());
        int file = open(map, O_CREAT | O_EXCL | O_WRONLY, 0600);
        // A line for another address, as from a program that generates code.
        check(file < 0 || write(file, "10 10 own\n", 10) != 10, map);
        check(mount(argv[2], map, NULL, MS_BIND, NULL), "mount");
    } else {
        check(mount(".", "/tmp", NULL, MS_BIND, NULL), "mount");
    }
    void *copy = mmap(code, CODE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    check(copy != (void *)code, "mmap");
    puts("ready");
    fflush(stdout);
    char line[16];
    return fgets(line, sizeof line, stdin) == NULL;
}
