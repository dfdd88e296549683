// A preloaded program loads an object of 6 MiB of code, which is on huge pages at the first look-up of a symbol. After
// the object was loaded and released 1,000 times, no mapping, pool page or memory remains.
//
// link: preload
// flags: -DROUNDS=1000
// plugin: plugin.c
// env: PAGELIFT=only=lifts_loaded_objects pages=hugetlb lift=text,rodata quiet
// needs: pool 64M
#include "support.h"
#include <dlfcn.h>

static void *load(int check)
{
    void *handle = dlopen("./plugin.so", RTLD_NOW);
    if (!handle) fail("%s", dlerror());
    int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
    void *(*start)(void) = (void *(*)(void))dlsym(handle, "plugin_start");
    CHECK(call && start);
    if (check) {
        CHECK(huge_bytes(start(), 1536 * 4096, NULL) >= whole_pages(start(), 1536 * 4096));
    }
    for (int index = 0; index < 1536; index += 17) CHECK(call(index) == index);
    return handle;
}

int main(void)
{
    check_all();
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    long free = 0, resident = 0;
    int mappings = 0, descriptors = 0;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(dlclose(load(round % 100 == 0)) == 0);
        if (round == 9) {
            free = free_pool_pages(), mappings = count_mappings(), resident = resident_kib();
            descriptors = count_entries("/proc/self/fd");
        }
    }
    CHECK(free_pool_pages() == free && count_entries("/proc/self/fd") == descriptors);
    if (count_mappings() != mappings) fail("%d mappings, then %d", mappings, count_mappings());
    if (resident_kib() > resident + 1024) fail("%ld KiB, then %ld", resident, resident_kib());
    CHECK(dlsym(RTLD_DEFAULT, "printf") && !dlsym(RTLD_DEFAULT, "there_is_none") && dlerror());
    CHECK(!dlopen("./there-is-none.so", RTLD_NOW) && strstr(dlerror(), "there-is-none"));
    puts("ok");
    return 0;
}
