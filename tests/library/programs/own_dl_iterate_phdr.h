// A program's own dl_iterate_phdr, in one of several forms; programs define it to throw exceptions without the dynamic
// linker's lock. Pagelift must not use it: it may depend on data that is not set up yet, and on Pagelift's own
// functions.
#ifndef OWN_DL_ITERATE_PHDR_H
#define OWN_DL_ITERATE_PHDR_H
#include "support.h"
#include <dlfcn.h>
#include <link.h>

typedef int (*callback)(struct dl_phdr_info *, size_t, void *);
static int own_calls;

#if defined(ONCE)
// As in FoundationDB: the original is looked up once.
static int (*original)(callback, void *);
static void look_up(void) { original = (int (*)(callback, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr"); }
#elif defined(LOCKED)
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
#elif defined(ABORTS)
static int is_ready;
#endif

__attribute__((visibility("default"))) int dl_iterate_phdr(callback act, void *data)
{
    own_calls++;
#if defined(ONCE)
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_up);
    return original ? original(act, data) : 0;
#elif defined(EACH_TIME)
    // As in ClickHouse: the original is looked up each time.
    int (*original)(callback, void *) = (int (*)(callback, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return original ? original(act, data) : 0;
#elif defined(LOCKED)
    pthread_mutex_lock(&own_lock);
    struct dl_phdr_info info = { 0 };
    int result = act(&info, sizeof info, data);
    pthread_mutex_unlock(&own_lock);
    return result;
#elif defined(ABORTS)
    if (!is_ready) abort();
    return 0;
#elif defined(WRONG)
    // As in Userver and others, which have a separate list; this list has an entry that is no object.
    static ElfW(Phdr) header = { .p_type = PT_LOAD, .p_memsz = 4096 };
    struct dl_phdr_info info = { .dlpi_addr = 4096, .dlpi_name = "", .dlpi_phdr = &header, .dlpi_phnum = 1 };
    return act(&info, sizeof info, data);
#else
    // The list is empty.
    (void)act, (void)data;
    return 0;
#endif
}
#endif
