/* Counts and passes of give_back.c, in mimalloc with one arena and a clock that the test sets. The first argument names the
   case. Compiled and run by give_back.rs. */
#include "../src/mimalloc.c"

/* The functions of exports.rs, without large blocks. */
void *mimalloc_malloc_slowly(size_t size) { return (void)size, abort(), NULL; }
void *mimalloc_calloc_slowly(size_t size) { return (void)size, abort(), NULL; }
void mimalloc_free_slowly(void *block) { mi_free(block); }
void *mimalloc_realloc_slowly(void *block, size_t size) { return mimalloc_realloc_small(block, size); }
void *mimalloc_no_memory(void) { return abort(), NULL; }

enum { INTERVAL_MS = 2000, START_MS = 1000000 };
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define ARENA (4096 * MIB)
#define HUGE_PAGE (2 * MIB)

static long now_ms = START_MS;

static int clock_of_the_test(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){.tv_sec = now_ms / 1000, .tv_nsec = now_ms % 1000 * 1000000};
    return 0;
}

static void check(bool is_true, const char *what) {
    if (is_true)
        return;
    fprintf(stderr, "%s: %zu bytes counted, %zu free, %zu in use\n", what, load(&free_memory.dirty), all_dirty(),
            load(&free_memory.in_use));
    exit(1);
}

static void set_up(void) {
    mimalloc_clock = clock_of_the_test;
    mimalloc_large_from = 8 * MIB;
    mimalloc_within_grain = HUGE_PAGE - 1;
    mi_option_set(mi_option_disallow_os_alloc, 1);
    mi_option_set(mi_option_minimal_purge_size, HUGE_PAGE / KIB);
    mi_option_set(mi_option_purge_delay, INTERVAL_MS);
    char *start = mmap(NULL, ARENA + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(start != MAP_FAILED, "no memory for the arena");
    start += HUGE_PAGE - (uintptr_t)start % HUGE_PAGE;
    madvise(start, ARENA, MADV_NOHUGEPAGE);
    check(mi_manage_os_memory_ex(start, ARENA, true, false, true, -1, false, NULL), "the arena is refused");
}

static void *allocate(size_t size) {
    void *block = mimalloc_malloc(size);
    check(block != NULL, "no block");
    return block;
}

/* Allocates blocks, and frees every other one: no longer block finds room between the rest. */
static void leave_holes(size_t count, size_t size) {
    void *blocks[count];
    for (size_t i = 0; i < count; i++)
        blocks[i] = allocate(size);
    for (size_t i = 0; i < count; i += 2)
        mimalloc_free(blocks[i]);
}

static void new_memory_leaves_the_count(void) {
    leave_holes(32, 600 * KIB);
    size_t free = all_dirty();
    check(free > 8 * MIB && load(&free_memory.dirty) == free, "after the frees");
    for (int i = 0; i < 16; i++)
        allocate(1200 * KIB);
    check(all_dirty() == free && load(&free_memory.dirty) == free, "after new memory was taken");
    /* mimalloc decides whether these take free memory. */
    for (size_t size = 60 * KIB; size < 800 * KIB; size += 20 * KIB) {
        allocate(size);
        check(load(&free_memory.dirty) == all_dirty(), "after a block of another size");
    }
    void *last = allocate(2000 * KIB);
    for (size_t size = 2100 * KIB; size < 4000 * KIB; size += 100 * KIB) {
        last = mimalloc_realloc(last, size);
        check(load(&free_memory.dirty) == all_dirty(), "after a block has grown");
    }
    mimalloc_free(last);
    check(load(&free_memory.dirty) == all_dirty(), "at the end");
}

static void churn_returns_memory(void) {
    for (size_t round = 0; round < 24; round++)
        leave_holes(32, 560 * KIB + round * 64 * KIB);
    size_t most = most_kept(KEPT_SHARE_IN_PARTS) + LEAST_KEPT / 2;
    check(all_dirty() <= most, "too much is kept");
    check(load(&free_memory.dirty) == all_dirty(), "counted wrongly");
}

static void *allocate_by_slow_calls(void *unused) {
    for (int i = 0; i < 200; i++)
        allocate(2000);
    check(_mi_theap_default()->heartbeat == 0, "a new thread has searched for free pages");
    now_ms += INTERVAL_MS;
    for (int i = 0; i < 200; i++)
        allocate(2000);
    check(_mi_theap_default()->heartbeat == 1, "the thread has not searched once after an interval");
    return unused;
}

static void in_thread(void *(*work)(void *)) {
    pthread_t thread;
    check(pthread_create(&thread, NULL, work, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

static void new_threads_search_nothing(void) {
    for (int i = 0; i < 3; i++)
        in_thread(allocate_by_slow_calls);
}

enum { OTHERS = 128 };
static void *of_others[OTHERS];
static bool is_freed;

static void *free_all(void *unused) {
    for (int i = 0; i < OTHERS; i++)
        mimalloc_free(of_others[i]);
    return unused;
}

/* The first pass returns nothing: another thread seems to search for memory until `next_pass` changes at the end of the pass. */
static bool returns_nothing;
enum { BEFORE_FIRST_PASS = 1 };

/* Called when a pass claims slices: another thread frees its memory, and never calls again. */
static int lock_of_the_test(pthread_mutex_t *mutex) {
    (void)mutex;
    bool is_first = load(&free_memory.next_pass) == BEFORE_FIRST_PASS;
    mi_atomic_store_relaxed(&searching_threads, (size_t)(returns_nothing && is_first));
    if (load(&free_memory.passing_thread) == _mi_thread_id() && !is_freed) {
        is_freed = true;
        in_thread(free_all);
    }
    return 0;
}

/* Makes a pass, by `begin` or by frees of own blocks, as many as `count`. */
static void free_during_a_pass(int count, void (*begin)(void)) {
    void *own[64];
    for (int i = 0; i < OTHERS; i++)
        of_others[i] = allocate(1900 * KIB);
    for (int i = 0; i < 64; i++)
        own[i] = allocate(1900 * KIB);
    mimalloc_lock = lock_of_the_test;
    for (int i = 0; i < count && !is_freed; i++)
        mimalloc_free(own[i]);
    if (begin != NULL)
        begin();
    check(is_freed, "no pass was made");
    check(load(&free_memory.dirty) == all_dirty(), "counted wrongly");
    check(all_dirty() <= most_kept(KEPT_SHARE) + LEAST_KEPT / 2, "too much is kept");
}

static void frees_during_a_pass_count(void) { free_during_a_pass(64, NULL); }

static void frees_during_a_vain_pass_count(void) {
    returns_nothing = true;
    mi_atomic_store_relaxed(&free_memory.next_pass, (size_t)BEFORE_FIRST_PASS);
    free_during_a_pass(64, NULL);
}

static void trim(void) { mimalloc_trim(0); }

/* Fewer blocks than cause a pass by amount. */
static void frees_during_a_trim_count(void) { free_during_a_pass(4, trim); }

static void break_up_some(void) { mimalloc_break_up(64); }

static void frees_during_a_break_up_count(void) { free_during_a_pass(4, break_up_some); }

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"new_memory_leaves_the_count", new_memory_leaves_the_count},
        {"churn_returns_memory", churn_returns_memory},
        {"new_threads_search_nothing", new_threads_search_nothing},
        {"frees_during_a_pass_count", frees_during_a_pass_count},
        {"frees_during_a_vain_pass_count", frees_during_a_vain_pass_count},
        {"frees_during_a_trim_count", frees_during_a_trim_count},
        {"frees_during_a_break_up_count", frees_during_a_break_up_count},
    };
    set_up();
    for (size_t i = 0; count == 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(words[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
