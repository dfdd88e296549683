// A program that defines dl_iterate_phdr itself lifts itself, with other threads, too; its function is never called.
//
// link: shared archive static musl musl-static
// flags: -DEMPTY | -DONCE | -DEACH_TIME | -DLOCKED | -DABORTS | -DWRONG
// needs: thp
#include "own_dl_iterate_phdr.h"

static void *wait_for_ever(void *nothing)
{
    pause();
    return nothing;
}

int main(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    options.objects = "exe";
    options.logger = print_line;
#if defined(LOCKED)
    // The program holds the lock that its function takes.
    pthread_mutex_lock(&own_lock);
#endif
    CHECK(pagelift_lift(&options, NULL) >= 0);
    check_all();
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    check_all();
    if (own_calls) fail("%d calls of its function", own_calls);
    puts("ok");
    fflush(stdout);
    _exit(0);
}
