// The library in programs with the thread sanitizer, which define dl_iterate_phdr, mmap and more: lift, restore.
//
// link: shared
// flags: -fsanitize=thread
// needs: thp
#include "support.h"

static void *run(void *nothing)
{
    check_code(64);
    return nothing;
}

int main(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "exe";
    CHECK(pagelift_lift(&options, NULL) >= 0);
    check_all();
    check_data(0);
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(pagelift_restore(NULL, NULL) >= 0);
    check_all();
    puts("ok");
    return 0;
}
