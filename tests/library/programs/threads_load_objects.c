// Eight threads at the same time repeatedly load, use and release objects of 6 MiB of code, while others look up
// symbols: every object works, and at the end nothing remains. The second set has a program's own dl_iterate_phdr,
// which does not keep objects from being unloaded.
//
// link: preload
// flags: -DOF_THE_C_LIBRARY | -DOWN -DEMPTY -rdynamic
// plugin: plugin.c
// env: PAGELIFT=only=threads_load_objects pages=hugetlb lift=text,rodata quiet
// needs: pool 96M
#include "support.h"
#include <dlfcn.h>
#ifdef OWN
#include "own_dl_iterate_phdr.h"
#endif

static volatile int stop;
static void *load_and_release(void *argument)
{
    char name[64];
    snprintf(name, sizeof name, "./copy-%d.so", (int)(intptr_t)argument);
    for (int round = 0; round < 40; round++) {
        void *handle = dlopen(name, RTLD_NOW);
        if (!handle) fail("%s", dlerror());
        int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
        int *counter = (int *)dlsym(handle, "plugin_counter");
        CHECK(call && counter && *counter == 7);
        for (int index = 0; index < 1536; index += 11) CHECK(call(index) == index);
        CHECK(*counter == 7 + 140);
        CHECK(dlclose(handle) == 0);
    }
    return NULL;
}

static void *look_up(void *argument)
{
    (void)argument;
    while (!stop) CHECK(dlsym(RTLD_DEFAULT, "printf") && !dlsym(RTLD_DEFAULT, "there_is_none"));
    return NULL;
}

static void all_at_once(void)
{
    pthread_t loaders[8], lookers[2];
    stop = 0;
    for (intptr_t index = 0; index < 2; index++) pthread_create(&lookers[index], NULL, look_up, NULL);
    for (intptr_t index = 0; index < 8; index++) pthread_create(&loaders[index], NULL, load_and_release, (void *)index);
    for (int index = 0; index < 8; index++) pthread_join(loaders[index], NULL);
    stop = 1;
    for (int index = 0; index < 2; index++) pthread_join(lookers[index], NULL);
}

int main(void)
{
    CHECK(system("for i in 0 1 2 3 4 5 6 7; do cp plugin.so copy-$i.so; done") == 0);
    all_at_once();
    long pool = free_pool_pages();
    int mappings = count_mappings(), descriptors = count_entries("/proc/self/fd");
    all_at_once();
    if (free_pool_pages() != pool) fail("%ld free pages, then %ld", pool, free_pool_pages());
    // A thread's stack and arena may be kept or not.
    if (count_mappings() > mappings + 16) fail("%d mappings, then %d", mappings, count_mappings());
    CHECK(count_entries("/proc/self/fd") == descriptors);
    check_code(1);
#ifdef OWN
    CHECK(own_calls == 0);
#endif
    puts("ok");
    return 0;
}
