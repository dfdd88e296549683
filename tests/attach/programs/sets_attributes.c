// Sets an attribute of its whole code for each line of input, and reports whether the kernel permitted it: `lock` and
// `unlock` (mlock(2)), `dontfork` and `dofork` (madvise(2)).
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1600
#include "ranges.h"
#include <string.h>
#include <sys/mman.h>

static int set(const char *attribute, void *code, size_t bytes) {
    if (!strcmp(attribute, "lock\n")) return mlock(code, bytes);
    if (!strcmp(attribute, "unlock\n")) return munlock(code, bytes);
    if (!strcmp(attribute, "dontfork\n")) return madvise(code, bytes, MADV_DONTFORK);
    return madvise(code, bytes, MADV_DOFORK);
}

int main(void) {
    char line[16], path[4096];
    unsigned long start, end;
    uint64_t before = run_code();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
        FILE *maps = fopen("/proc/self/maps", "r");
        int refused = 0;
        while (fgets(path, sizeof path, maps)) {
            char executable = 0;
            if (sscanf(path, "%lx-%lx %*c%*c%c", &start, &end, &executable) != 3 || executable != 'x') continue;
            if (end <= (uintptr_t)scattered_code || start >= (uintptr_t)scattered_code + 4096 * CODE_PAGES) continue;
            refused |= set(line, (void *)start, end - start);
        }
        fclose(maps);
        line[strcspn(line, "\n")] = 0;
        printf("%s: %s\n", line, refused ? "refused" : "set");
        fflush(stdout);
    }
    return run_code() != before;
}
