// An object that was linked without the compiler's start files gives no notice when it is loaded: it is on huge pages
// at the first look-up of a symbol.
//
// link: preload
// plugin: plugin.c -nostartfiles
// env: PAGELIFT=only=lifts_objects_without_start_files pages=hugetlb lift=text,rodata quiet
// needs: pool 64M
#include "support.h"
#include <dlfcn.h>

int main(void)
{
    for (int round = 0; round < 20; round++) {
        void *handle = dlopen("./plugin.so", RTLD_NOW);
        if (!handle) fail("%s", dlerror());
        void *(*start)(void) = (void *(*)(void))dlsym(handle, "plugin_start");
        int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
        size_t pool;
        huge_bytes(start(), 1536 * 4096, &pool);
        CHECK(pool >= whole_pages(start(), 1536 * 4096) && call(1000) == 1000);
        CHECK(dlclose(handle) == 0);
    }
    puts("ok");
    return 0;
}
