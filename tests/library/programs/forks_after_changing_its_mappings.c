// The program protects, unmaps or replaces one huge page in the middle of a lifted range, with an empty pool. The guard
// serves the rest: a child writes to the whole rest and lives, alone and beside another thread, and finds the
// protections of its parent. A restore returns the remaining pages, and the program's protections stay.
//
// link: shared archive
// flags: -DCHANGE=PROTECT | -DCHANGE=HIDE | -DCHANGE=UNMAP | -DCHANGE=REPLACE
// needs: pool 64M
#include "fork.h"
#include <semaphore.h>

enum { PROTECT, HIDE, UNMAP, REPLACE };

// The changed page.
static unsigned char *page;
static size_t size;

static void change(void)
{
    size = huge_page();
    // The second whole page of bss, with one page before and one after.
    page = (unsigned char *)(((uintptr_t)big_bss + size - 1) / size * size) + size;
    CHECK(page + size <= big_bss + BSS_BYTES);
    switch (CHANGE) {
    case PROTECT: CHECK(mprotect(page, size, PROT_READ) == 0); break;
    case HIDE: CHECK(mprotect(page, size, PROT_NONE) == 0); break;
    case UNMAP: CHECK(munmap(page, size) == 0); break;
    case REPLACE:
        CHECK(mmap(page, size, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == page);
        memset(page, 1, size);
    }
    exhaust_pool();
}

// True if every byte of bss outside of the changed page is `value`.
static int rest_is(unsigned char value)
{
    for (unsigned char *at = big_bss; at < big_bss + BSS_BYTES; at++)
        if ((at < page || at >= page + size) && *at != value) return 0;
    return 1;
}

static void fill_rest(unsigned char value)
{
    memset(big_bss, value, page - big_bss);
    memset(page + size, value, big_bss + BSS_BYTES - (page + size));
}

// True if every byte of the changed page is `value`, or if the page is unmapped.
static int page_is(unsigned char value)
{
    for (size_t at = 0; CHANGE != UNMAP && at < size; at++)
        if (page[at] != value) return 0;
    return 1;
}

// The page's protection in maps; the empty string if it is unmapped.
static const char *protection(void)
{
    static char found[8];
    unsigned long from, to;
    char line[4096], text[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    found[0] = 0;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, text) == 3 && from <= (uintptr_t)page && to > (uintptr_t)page)
            strcpy(found, text);
    fclose(maps);
    return found;
}

static const char *expected(void)
{
    return CHANGE == PROTECT ? "r--p" : CHANGE == HIDE ? "---p" : CHANGE == UNMAP ? "" : "rw-p";
}

__attribute__((noreturn)) static void use_all(int of_pool)
{
    size_t pool;
    huge_bytes(big_data, sizeof big_data, &pool);
    if (pool > 0 || !rest_is(1) || !data_is(0)) _exit(1);
    if (strcmp(protection(), expected())) _exit(2);
    if (of_pool && mprotect(page, size, PROT_READ | PROT_WRITE)) _exit(3);
    if (!page_is(1)) _exit(4);
    fill_rest(2);
    if (CHANGE != UNMAP) memset(page, 2, size);
    add_to_data(7);
    _exit(rest_is(2) && page_is(2) && data_is(7) ? 5 : 6);
}

static void child_writes_first(void)
{
    pid_t child = fork();
    if (!child) use_all(CHANGE == PROTECT || CHANGE == HIDE);
    expect_exit(child, 5);
    CHECK(rest_is(1) && data_is(0));
}

static void parent_writes_first(void)
{
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (!child) {
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(7);
        use_all(CHANGE == PROTECT || CHANGE == HIDE);
    }
    fill_rest(9);
    if (CHANGE == PROTECT || CHANGE == HIDE) {
        int bits = CHANGE == PROTECT ? PROT_READ : PROT_NONE;
        CHECK(mprotect(page, size, PROT_READ | PROT_WRITE) == 0);
        memset(page, 9, size);
        memset(page, 1, size);
        CHECK(mprotect(page, size, bits) == 0);
    }
    CHECK(write(go[1], "", 1) == 1);
    expect_exit(child, 5);
    fill_rest(1);
    close(go[0]), close(go[1]);
}

static sem_t done;
static void *wait_for_end(void *argument)
{
    (void)argument;
    while (sem_wait(&done)) {}
    return NULL;
}

int main(void)
{
    lift_writable();
    change();
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    size_t pool;
    huge_bytes(big_data, sizeof big_data, &pool);
    CHECK(pool >= 4 << 20);
    child_writes_first();
    parent_writes_first();
    pthread_t thread;
    CHECK(sem_init(&done, 0, 0) == 0 && pthread_create(&thread, NULL, wait_for_end, NULL) == 0);
    child_writes_first();
    parent_writes_first();
    sem_post(&done);
    pthread_join(thread, NULL);

    // The library knows the remaining pages, and returns them.
    CHECK(pagelift_query(&report) == PAGELIFT_OK && report.hugetlb_bytes >= 8 << 20);
    long free = free_pool_pages();
    int result = pagelift_restore(NULL, &report);
    if (CHANGE == HIDE) {
        CHECK(result == PAGELIFT_PARTIAL && report.refused_ranges == 1 && strstr(report.message, "unreadable"));
        CHECK(!strcmp(protection(), "---p") && mprotect(page, size, PROT_READ | PROT_WRITE) == 0);
        result = pagelift_restore(NULL, &report);
    } else {
        CHECK(!strcmp(protection(), expected()));
    }
    if (result != PAGELIFT_OK) fail("%d: %s", result, report.message);
    huge_bytes(big_bss, BSS_BYTES, &pool);
    CHECK(pool == 0);
    huge_bytes(big_data, sizeof big_data, &pool);
    CHECK(pool == 0 && free_pool_pages() >= free + 4);
    CHECK(rest_is(1) && page_is(1) && data_is(0));
    puts("ok");
    return 0;
}
