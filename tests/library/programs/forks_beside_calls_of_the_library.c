// Another thread constantly calls the library, with options that it must parse and refuse, while this thread forks: in
// every child the library is not locked, and a call returns.
//
// link: shared archive
#include "support.h"

#ifdef BRIEF
enum { FORKS = 300, SECONDS = 60 };
#else
enum { FORKS = 1000, SECONDS = 60 };
#endif

static void *ask_in_vain(void *argument)
{
    (void)argument;
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.objects = "libone.so*,libtwo.so*,libthree.so*";
    options.numa = "node=x";
    for (;;) CHECK(pagelift_lift(&options, NULL) == PAGELIFT_INVALID);
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    for (int index = 0; index < 2; index++) CHECK(pthread_create(&threads[index], NULL, ask_in_vain, NULL) == 0);
    for (int round = 0; round < FORKS; round++) {
        pid_t child = fork();
        if (!child) _exit(pagelift_query(NULL) == PAGELIFT_OK ? 5 : 1);
        CHECK(child > 0);
        int status = status_within(SECONDS, child);
        if (WIFSIGNALED(status)) fail("child %d: signal %d", round, WTERMSIG(status));
        CHECK(WEXITSTATUS(status) == 5);
    }
    puts("ok");
    return 0;
}
