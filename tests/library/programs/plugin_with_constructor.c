// A shared object whose only use is its constructor, which checks whether the object's code is already on huge pages.
#include "plugin.c"
#include <stdio.h>

extern void constructed(const void *start, unsigned long length) __attribute__((weak));
__attribute__((constructor)) static void construct(void)
{
    if (plugin_call(77) == 77 && constructed) constructed(plugin_code, 1536 * 4096);
}
