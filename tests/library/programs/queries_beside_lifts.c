// A thread queries while others lift, restore and fork: every call returns, and in every child the dynamic linker's list
// of objects is free.
//
// link: shared archive static
// needs: thp
#include "support.h"
#include <link.h>

#ifdef BRIEF
enum { SECONDS = 2, LIMIT = 60 };
#else
enum { SECONDS = 5, LIMIT = 60 };
#endif

static long calls[3];
static int is_done;

static void *query(void *argument)
{
    (void)argument;
    while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED)) {
        CHECK(pagelift_query(NULL) == PAGELIFT_OK);
        __atomic_add_fetch(&calls[0], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *lift(void *argument)
{
    long *count = argument;
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.lift = PAGELIFT_LIFT_TEXT;
    options.objects = "exe";
    while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED)) {
        CHECK(pagelift_lift(&options, NULL) >= 0);
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static int next(struct dl_phdr_info *info, size_t size, void *count)
{
    (void)info, (void)size;
    ++*(int *)count;
    return 0;
}

// Called with the list locked.
static int query_in_callback(struct dl_phdr_info *info, size_t size, void *result)
{
    (void)info, (void)size;
    *(int *)result = pagelift_query(NULL);
    return 1;
}

static void fork_once(int number)
{
    pid_t child = fork();
    if (!child) {
        int count = 0;
        dl_iterate_phdr(next, &count);
        _exit(count > 0 && pagelift_query(NULL) == PAGELIFT_OK ? 5 : 1);
    }
    CHECK(child > 0);
    int status = status_within(LIMIT, child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 5) fail("child %d: status %d", number, status);
}

int main(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.lift = PAGELIFT_LIFT_TEXT;
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "exe";
    CHECK(pagelift_lift(&options, NULL) >= 0);
    pthread_t threads[3];
    CHECK(pthread_create(&threads[0], NULL, query, NULL) == 0);
    for (int index = 1; index < 3; index++) CHECK(pthread_create(&threads[index], NULL, lift, &calls[index]) == 0);
    // A call that does not return would keep this thread waiting, too.
    alarm(4 * (SECONDS + LIMIT));
    time_t end = time(NULL) + SECONDS;
    int forks = 0;
    for (; time(NULL) < end; forks++) {
        fork_once(forks);
        int result = -100;
        dl_iterate_phdr(query_in_callback, &result);
        CHECK(result == PAGELIFT_OK);
    }
    __atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
    for (int index = 0; index < 3; index++) CHECK(pthread_join(threads[index], NULL) == 0 && calls[index] > 0);
    printf("%d forks, %ld queries, %ld lifts\n", forks, calls[0], calls[1] + calls[2]);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    check_all();
    puts("ok");
    return 0;
}
