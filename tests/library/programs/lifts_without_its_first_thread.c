// The first thread has ended, and another one lifts and restores the program. The kernel then shows no memory in
// /proc/self, which belongs to the first thread.
//
// link: shared archive musl musl-static
// needs: pool 64M
#include "support.h"

static void await_the_end_of_the_first(void)
{
    for (char state = 0; state != 'Z';) {
        char text[512] = "";
        int file = open("/proc/self/stat", O_RDONLY);
        CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
        close(file);
        char *name_end = strrchr(text, ')');
        CHECK(name_end);
        state = name_end[2];
        sched_yield();
    }
}

static void *work(void *nothing)
{
    (void)nothing;
    await_the_end_of_the_first();
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int result = pagelift_lift(&options, &report);
    CHECK(result == PAGELIFT_OK || result == PAGELIFT_PARTIAL);
    CHECK(report.covered_bytes > 0);
    check_code(7);
    check_constants(97);
    CHECK(pagelift_restore(NULL, &report) == PAGELIFT_OK);
    check_code(7);
    check_constants(97);
    puts("ok");
    exit(0);
}

int main(void)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, work, NULL));
    pthread_exit(NULL);
}
