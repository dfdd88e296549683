// Has one child after another, all with the same PID, which execute the programs of the first and the second argument
// in turn. A lifter that chose a program by the first name may find the second program under its PID, with everything
// at the same addresses. The second program checks whether it was changed. After a line of input the parent reports the
// result.
//
// build: gcc -g -O1 -Wall -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1100
#include "ranges.h"
#include "ready.h"
#include <errno.h>
#include <linux/sched.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { UNTOUCHED = 7 };

static void rest(unsigned microseconds) {
    struct timespec time = {0, microseconds * 1000L};
    nanosleep(&time, NULL);
}

/* True if its code still maps its file, and no page of its stack is used for calls. */
static int is_untouched(void) {
    char line[512];
    int shows_file = 0, has_call_page = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
        int holds_code = start <= (uintptr_t)scattered_code && (uintptr_t)scattered_code + 4096 * (CODE_PAGES - 1) < end;
        if (holds_code && strchr(line, '/')) shows_file = 1;
        for (; strstr(line, "[stack]") && start < end; start += 4096)
            has_call_page |= !memcmp((void *)start, "pageliftcallpage", 16);
    }
    if (maps) fclose(maps);
    return shows_file && !has_call_page;
}

static int be_second(void) {
    uint64_t right = run_code();
    rest(3000);
    return run_code() == right && is_untouched() ? UNTOUCHED : 1;
}

/* Starts a child, with this PID unless it is 0. */
static pid_t start(char *path, const char *role, const char *time, pid_t number) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    if (number) arguments.set_tid = (uintptr_t)&number, arguments.set_tid_size = 1;
    pid_t child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0) {
        execl(path, path, role, time, NULL);
        _exit(3);
    }
    return child;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    if (!strcmp(words[1], "first")) {
        rest(strtoul(words[2], NULL, 10));
        return UNTOUCHED;
    }
    if (!strcmp(words[1], "second")) return be_second();
    // All programs get the same addresses.
    if (personality(ADDR_NO_RANDOMIZE) < 0) return 3;
    struct pollfd input = {0, POLLIN, 0};
    unsigned step = 0, others = 0;
    int wrong = 0;
    pid_t number = 0;
    while (!wrong && poll(&input, 1, 0) == 0) {
        int is_first = step++ % 2 == 0;
        char time[16];
        // From no time to longer than a lift takes.
        snprintf(time, sizeof time, "%u", step * 7919 % 60000);
        pid_t child = start(words[is_first ? 1 : 2], is_first ? "first" : "second", time, number);
        if (child < 0 && errno == EEXIST) {
            // Another process has got the PID first.
            number = 0;
            step++;
            continue;
        }
        int status = 0;
        while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        wrong = child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != UNTOUCHED;
        if (wrong) printf("gained: the %s program ended with %#x (%s)\n", is_first ? "first" : "second", status, strerror(errno));
        others += !is_first && number;
        if (step == 2) printf("ready\n"), fflush(stdout);
        number = child;
    }
    printf("%u programs had the number of another; %s\n", others, wrong ? "one was touched" : "none was touched");
    return wrong;
}
