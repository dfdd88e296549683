// A small program that is named starts under preload within a millisecond of its start without, and a lift that finds
// nothing to do takes less than one.
//
// link: shared
// needs: thp
#include "support.h"

static double run(const char *preload, const char *words)
{
    double best = 1e9;
    for (int round = 0; round < 40; round++) {
        double start = seconds();
        pid_t child = vfork();
        if (!child) {
            char *environment[] = { (char *)preload, (char *)words, NULL }, *arguments[] = { "true", NULL };
            execve("/bin/true", arguments, environment);
            _exit(1);
        }
        int status;
        waitpid(child, &status, 0);
        CHECK(status == 0);
        double took = (seconds() - start) * 1e3;
        if (took < best) best = took;
    }
    return best;
}

int main(int count, char **arguments)
{
    (void)count, (void)arguments;
    CHECK(pagelift_version()[0]);
    char library[5000] = "LD_PRELOAD=", line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "libpagelift.so")) {
            strcat(library, strchr(line, '/'));
            *strchr(library, '\n') = 0;
            break;
        }
    fclose(maps);
    CHECK(strstr(library, "libpagelift.so"));
    double plain = run("A=", "B="), unnamed = run(library, "PAGELIFT=only=mariadbd pages=thp"),
           named = run(library, "PAGELIFT=only=true pages=thp quiet");
    printf("/bin/true takes %.2f ms, preloaded and not named %.2f, named with nothing to lift %.2f\n", plain, unnamed, named);
    CHECK(unnamed < plain + 1 && named < plain + 1.5);
    puts("ok");
    return 0;
}
