// After a line of input, gives up access to its own files: by another root directory (`chroot` and a folder) or by
// Landlock (`landlock`).
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int lock_in(char **words) {
    if (!strcmp(words[1], "chroot")) return chroot(words[2]) || chdir("/");
    struct landlock_ruleset_attr rights = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE};
    int rules = syscall(SYS_landlock_create_ruleset, &rights, sizeof rights, 0);
    return rules < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_landlock_restrict_self, rules, 0);
}

int main(int count, char **words) {
    if (count < 2) return 2;
    ready();
    if (lock_in(words)) {
        perror(words[1]);
        return 3;
    }
    puts("locked in");
    ready();
    return run_code() == 0;
}
