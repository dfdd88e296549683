// An object that dlopen finds only by the RUNPATH of the caller, with $ORIGIN, is found under preload, too.
//
// link: preload none
// plugin: plugin.c
// flags: -Wl,--enable-new-dtags,-rpath,$ORIGIN
// env: PAGELIFT=only=keeps_the_callers_runpath pages=thp quiet
// needs: thp
#include "support.h"
#include <dlfcn.h>

int main(void)
{
    CHECK(chdir("/") == 0);
    void *handle = dlopen("plugin.so", RTLD_NOW);
    if (!handle) fail("%s", dlerror());
    int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
    CHECK(call && call(33) == 33);
    puts("ok");
    return 0;
}
