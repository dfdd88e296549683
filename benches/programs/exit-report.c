/* Preloaded into a measured program. When the program ends, this library waits ten seconds and then writes the
   program's memory to the file that the environment variable HEAP_REPORT names: anonymous bytes, bytes of the pool, and
   anonymous bytes on huge pages. `$HEAP_REPORT.ends` exists from the start of the wait. It calls no malloc.

   The first process with this library is the measured one; its children report nothing. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 10 };
static char report[4096];
static pid_t measured;

/* A field of a file of /proc that counts kibibytes, in bytes. */
static long long field(const char *file, const char *name) {
    static char text[16384];
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got;
    while (fd >= 0 && length < sizeof text - 1 && (got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)got;
    if (fd >= 0)
        close(fd);
    text[length] = 0;
    char *found = strstr(text, name);
    return found ? atoll(found + strlen(name)) << 10 : 0;
}

static void write_text(const char *ending, const char *text) {
    char path[sizeof report + 8];
    snprintf(path, sizeof path, "%s%s", report, ending);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    if (write(fd, text, strlen(text)) < 0)
        unlink(path);
    close(fd);
}

static void at_exit(void) {
    if (getpid() != measured)
        return;
    write_text(".ends", "");
    struct timespec rest = {.tv_sec = SECONDS};
    while (nanosleep(&rest, &rest) != 0)
        ;
    char text[100];
    snprintf(text, sizeof text, "%lld %lld %lld\n", field("/proc/self/status", "\nRssAnon:"),
             field("/proc/self/status", "\nHugetlbPages:"), field("/proc/self/smaps_rollup", "\nAnonHugePages:"));
    write_text("", text);
}

/* An exec keeps the process number, so the file names the measured process in each of its programs. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HEAP_REPORT");
    if (!path || strlen(path) >= sizeof report)
        return;
    strcpy(report, path);
    char owner[sizeof report + 8], text[20] = {0};
    snprintf(owner, sizeof owner, "%s.of", report);
    int fd = open(owner, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) == 0) {
        snprintf(text, sizeof text, "%d", getpid());
        if (write(fd, text, strlen(text)) < 0)
            text[0] = 0;
    }
    close(fd);
    measured = atoi(text);
    if (getpid() == measured)
        atexit(at_exit);
}
