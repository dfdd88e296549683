// At the limit of its address space, a preloaded program loads an object, which is not lifted then.
//
// link: preload
// plugin: plugin.c
// env: PAGELIFT=only=loads_without_memory pages=thp quiet
// needs: thp
#include "support.h"
#include <dlfcn.h>
#include <sys/resource.h>

enum { MAPPINGS = 10000, LIMIT = 60, OBJECT = 7 << 20 };

static void load(size_t more)
{
    for (int index = 0; index < MAPPINGS; index += 2) {
        char *at = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && mprotect(at, 4096, PROT_READ | PROT_WRITE) == 0);
    }
    FILE *file = fopen("/proc/self/statm", "r");
    long pages;
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    size_t bytes = (size_t)pages * sysconf(_SC_PAGESIZE) + OBJECT + more;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){ bytes, bytes }) == 0);
    void *handle = dlopen("./plugin.so", RTLD_NOW);
    if (!handle) fail("%s", dlerror());
    int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
    CHECK(call);
    for (int index = 0; index < 1536; index += 17) CHECK(call(index) == index);
}

int main(void)
{
    for (size_t mib = 0; mib <= 32; mib += 4) {
        pid_t child = fork();
        if (!child) load(mib << 20), _exit(5);
        CHECK(child > 0);
        int status = status_within(LIMIT, child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 5) fail("%zu MiB: status %d", mib, status);
    }
    puts("ok");
    return 0;
}
