// Replaces every mapping of the files named (its own file and a library, for example) by an anonymous copy, as a lift
// that keeps no file mapping would, and then copies its input to its output.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct mapping {
    unsigned long start, end;
    int protection;
};

static struct mapping found[256];

static int find(int names, char **name) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4352];
    int count = 0;
    while (maps && count < 256 && fgets(line, sizeof line, maps)) {
        char flags[8];
        struct mapping m;
        if (sscanf(line, "%lx-%lx %7s", &m.start, &m.end, flags) != 3)
            continue;
        m.protection = (flags[0] == 'r' ? PROT_READ : 0) | (flags[1] == 'w' ? PROT_WRITE : 0) |
                       (flags[2] == 'x' ? PROT_EXEC : 0);
        for (int i = 1; i < names; i++)
            if (strstr(line, name[i]) && m.protection != PROT_NONE) {
                found[count++] = m;
                break;
            }
    }
    if (maps)
        fclose(maps);
    return count;
}

static int replace(struct mapping m) {
    unsigned long length = m.end - m.start;
    void *copy = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return 1;
    memcpy(copy, (void *)m.start, length);
    if (mprotect(copy, length, m.protection))
        return 1;
    return mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)m.start) == MAP_FAILED;
}

int library_number(void);

int main(int argc, char **argv) {
    int count = find(argc, argv);
    for (int i = 0; i < count; i++)
        if (replace(found[i]))
            return 1;
    char buffer[256];
    ssize_t got;
    if (library_number() != 42)
        return 1;
    while ((got = read(0, buffer, sizeof buffer)) > 0)
        if (write(1, buffer, got) != got)
            return 1;
    return 0;
}
