// vfork, posix_spawn, system, popen and daemon with an empty pool.
//
// link: shared
// needs: pool 64M
#include "fork.h"
#include <spawn.h>

extern char **environ;

int main(void)
{
    lift_writable();
    for (int round = 0; round < 5; round++) {
        pid_t child = vfork();
        if (!child) {
            execlp("true", "true", NULL);
            _exit(1);
        }
        expect_exit(child, 0);
        char *arguments[] = { "sh", "-c", "exit 3", NULL };
        CHECK(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ) == 0);
        big_data[round]++;
        expect_exit(child, 3);
        big_data[round]--;
        CHECK(WEXITSTATUS(system("exit 4")) == 4);
        FILE *pipe = popen("echo hello", "r");
        char line[16];
        CHECK(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "hello\n") && pclose(pipe) == 0);
    }
    CHECK(bss_is(1) && data_is(0));
    int report[2];
    CHECK(pipe(report) == 0);
    pid_t child = fork();
    if (!child) {
        if (daemon(1, 1)) _exit(1);
        add_to_data(1);
        memset(big_bss, 8, BSS_BYTES);
        char right = bss_is(8) && data_is(1);
        CHECK(write(report[1], &right, 1) == 1);
        _exit(0);
    }
    expect_exit(child, 0);
    char right = 0;
    CHECK(read(report[0], &right, 1) == 1 && right);
    CHECK(bss_is(1) && data_is(0));
    puts("ok");
    return 0;
}
