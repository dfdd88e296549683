// At the limit of address space, or of mappings, no call of the library ends the program: it lifts, or returns
// PAGELIFT_NO_MEMORY.
//
// link: shared archive static
// needs: thp
#include "support.h"
#include <sys/resource.h>

enum { MEMORY = 8 << 20, LIMIT = 120, MAPPINGS = 3000, MOST_MIB = 64 };
// Distances between the limits of memory, in MiB: while a lift fails, and above.
#ifdef BRIEF
enum { STEP = 2, LONG_STEP = 13 };
#else
enum { STEP = 1, LONG_STEP = 3 };
#endif

static char *memory;

static int lift(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "exe";
    return pagelift_lift(&options, NULL);
}

static int lift_and_restore(void)
{
    int lifted = lift(), restored = pagelift_restore(NULL, NULL);
    return restored == PAGELIFT_OK || restored == PAGELIFT_NO_MEMORY ? lifted : 99;
}

static int advise(void) { return pagelift_advise(memory, MEMORY, NULL); }

static int collapse(void) { return pagelift_collapse_heap(NULL); }

static int lift_and_query(void)
{
    int lifted = lift(), queried = pagelift_query(NULL);
    return queried == PAGELIFT_OK || queried == PAGELIFT_NO_MEMORY ? lifted : 99;
}

static int (*const CALLS[])(void) = { lift_and_restore, advise, collapse, lift_and_query };
enum { COUNT = sizeof CALLS / sizeof *CALLS };

// Mappings that the kernel joins with no other.
static void add_mappings(int most)
{
    for (int index = 0; index < most; index += 2) {
        char *at = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || mprotect(at, 4096, PROT_READ | PROT_WRITE) != 0) return;
    }
}

static void limit_memory(size_t more)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages;
    CHECK(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    size_t bytes = (size_t)pages * sysconf(_SC_PAGESIZE) + more;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){ bytes, bytes }) == 0);
}

// Calls in a child with so much memory left, or with as many mappings as there can be; returns the result.
static int call(int (*act)(void), int mappings, long mib)
{
    pid_t child = fork();
    if (!child) {
        add_mappings(mappings);
        if (mib >= 0) limit_memory((size_t)mib << 20);
        int result = act();
        check_code(17);
        check_constants(4001);
        for (int at = 0; at < MEMORY; at += 4096) CHECK(memory[at] == 1);
        _exit(result + 10);
    }
    CHECK(child > 0);
    int status = status_within(LIMIT, child);
    if (!WIFEXITED(status)) fail("%ld MiB, %d mappings: signal %d", mib, mappings, WTERMSIG(status));
    int result = WEXITSTATUS(status) - 10;
    if (result < PAGELIFT_NO_MEMORY || result > PAGELIFT_PARTIAL || result == PAGELIFT_INVALID)
        fail("%ld MiB, %d mappings: result %d", mib, mappings, result);
    return result;
}

int main(void)
{
    memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, MEMORY);
    for (int index = 0; index < COUNT; index++) {
        int without = 0, with = 0;
        for (long mib = 0; mib <= MOST_MIB; mib += mib < 12 ? STEP : LONG_STEP)
            for (int mappings = 0; mappings <= MAPPINGS; mappings += MAPPINGS) {
                int is_without = call(CALLS[index], mappings, mib) == PAGELIFT_NO_MEMORY;
                without += is_without;
                with += !is_without;
            }
        if (!without || !with) fail("call %d: %d results without memory and %d others", index, without, with);
        call(CALLS[index], 1 << 20, -1);
    }
    puts("ok");
    return 0;
}
