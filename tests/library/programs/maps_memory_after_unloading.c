// Loads a shared object, lifts it, unloads it, and maps its own memory at the object's addresses. A restore leaves that
// memory alone, and a second lift and restore of the object, loaded again, work.
//
// link: shared archive
// plugin: plugin.c
// needs: thp
#include "support.h"
#include <dlfcn.h>

enum { CODE_BYTES = 1536 * 4096 };

static pagelift_options options;

static void *load(char **code)
{
    void *handle = dlopen("./plugin.so", RTLD_NOW);
    if (!handle) fail("%s", dlerror());
    void *(*start)(void) = (void *(*)(void))dlsym(handle, "plugin_start");
    int (*call)(int) = (int (*)(int))dlsym(handle, "plugin_call");
    CHECK(start && call);
    *code = start();
    CHECK(pagelift_lift(&options, NULL) >= 0);
    CHECK(huge_bytes(*code, CODE_BYTES, NULL) >= whole_pages(*code, CODE_BYTES));
    for (int index = 0; index < 1536; index++) CHECK(call(index) == index);
    return handle;
}

// Counts the bytes that are not `byte`.
static size_t others(const char *memory, char byte)
{
    size_t count = 0;
    for (size_t at = 0; at < CODE_BYTES; at++) count += memory[at] != byte;
    return count;
}

int main(void)
{
    pagelift_options_init(&options, sizeof options);
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "plugin*";
    char *code;
    CHECK(dlclose(load(&code)) == 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *own = mmap(code, CODE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(own == code);
    memset(own, 7, CODE_BYTES);
    /* A restore may not replace what the program may write to while there are threads; read-only memory is open to it. */
    CHECK(mprotect(own, CODE_BYTES, PROT_READ) == 0);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    CHECK(others(own, 7) == 0);
    CHECK(mprotect(own, CODE_BYTES, PROT_READ | PROT_WRITE) == 0);
    /* Anonymous memory is zero after this; a private mapping of a file is the file. */
    CHECK(madvise(own, CODE_BYTES, MADV_DONTNEED) == 0);
    CHECK(others(own, 0) == 0);

    void *handle = load(&code);
    CHECK(code + CODE_BYTES <= own || own + CODE_BYTES <= code);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    CHECK(huge_bytes(code, CODE_BYTES, NULL) == 0);
    CHECK(dlclose(handle) == 0);
    puts("ok");
    return 0;
}
