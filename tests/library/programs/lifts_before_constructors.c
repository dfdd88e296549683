// An object that is loaded only for its constructor, and in which no symbol is looked up, is on huge pages when its
// constructor runs.
//
// link: preload
// plugin: plugin_with_constructor.c
// flags: -rdynamic
// env: PAGELIFT=only=lifts_before_constructors pages=hugetlb lift=text,rodata quiet
// needs: pool 64M
#include "support.h"
#include <dlfcn.h>

static int constructions;
void constructed(const void *start, unsigned long length)
{
    size_t pool;
    huge_bytes(start, length, &pool);
    if (pool < whole_pages(start, length)) fail("%zu bytes of %zu on huge pages", pool, whole_pages(start, length));
    constructions++;
}

int main(void)
{
    for (int round = 1; round <= 20; round++) {
        void *handle = dlopen("./plugin.so", round % 2 ? RTLD_NOW : RTLD_LAZY);
        if (!handle) fail("%s", dlerror());
        CHECK(constructions == round);
        CHECK(dlclose(handle) == 0);
    }
    puts("ok");
    return 0;
}
