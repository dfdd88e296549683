// Under preload a small program that is not named takes at most 1 ms longer to start, and a named program, with a lift
// that finds nothing to do, at most 1.5 ms. The limits rise on machines with slow starts.
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

static double least(double one, double other) { return one < other ? one : other; }

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
    // Every start includes the library's cost, but not every start the cost of a busy machine. On a slow machine, with
    // more than 0.6 ms for a plain start, the library is slow too.
    double plain = 1e9, unnamed = 1e9, named = 1e9, slowness, end = seconds() + 30;
    int at_once;
    do {
        plain = least(plain, run("A=", "B="));
        unnamed = least(unnamed, run(library, "PAGELIFT=only=mariadbd pages=thp"));
        named = least(named, run(library, "PAGELIFT=only=true pages=thp quiet"));
        slowness = plain > 0.6 ? plain / 0.6 : 1;
        at_once = unnamed < plain + slowness && named < plain + 1.5 * slowness;
    } while (!at_once && seconds() < end);
    printf("/bin/true takes %.2f ms, preloaded and not named %.2f, named with nothing to lift %.2f\n", plain, unnamed, named);
    CHECK(at_once);
    puts("ok");
    return 0;
}
