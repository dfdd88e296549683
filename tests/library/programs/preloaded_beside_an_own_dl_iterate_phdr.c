// The preloaded library lifts a program that defines dl_iterate_phdr itself, before the program is set up, and an
// object that the program loads; the program's function is never called.
//
// link: preload
// plugin: plugin.c
// flags: -DEMPTY -rdynamic | -DONCE -rdynamic | -DEACH_TIME -rdynamic | -DLOCKED -rdynamic | -DABORTS -rdynamic | -DWRONG -rdynamic
// env: PAGELIFT=only=preloaded_beside_an_own_dl_iterate_phdr pages=thp lift=text,rodata quiet
// needs: thp
#include "own_dl_iterate_phdr.h"

int main(void)
{
    check_all();
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    void *handle = dlopen("./plugin.so", RTLD_NOW);
    if (!handle) fail("%s", dlerror());
    void *(*start)(void) = (void *(*)(void))dlsym(handle, "plugin_start");
    int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
    CHECK(start && call && call(1535) == 1535);
    CHECK(huge_bytes(start(), 1536 * 4096, NULL) >= whole_pages(start(), 1536 * 4096));
    pid_t child = fork();
    if (child == 0) _exit(call(77) == 77 ? 0 : 1);
    CHECK(status_within(20, child) == 0);
    if (own_calls) fail("%d calls of its function", own_calls);
    puts("ok");
    return 0;
}
