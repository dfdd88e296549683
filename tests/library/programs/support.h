// A program with 8 MiB of code, 6 MiB of read-only data, 6 MiB of data and 8 MiB of bss, all of known contents, and
// functions by which its tests inspect their own process.
#ifndef SUPPORT_H
#define SUPPORT_H
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pagelift.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS 2048
#define STRIDE 4096
#define WORDS 786432
#define BSS_BYTES (8 << 20)

#ifndef BIG_RANGES_ARE_LINKED
#include "big_ranges.h"
#endif
extern char big_code[];
extern const uint64_t big_constants[WORDS];
extern uint64_t big_data[WORDS];
__attribute__((aligned(4096), unused)) static unsigned char big_bss[BSS_BYTES];

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAILED: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps && (c = getc(maps)) != EOF;) putc(c, stderr);
    fflush(stderr);
    _exit(1);
}
#define CHECK(condition) \
    do { \
        if (!(condition)) fail("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

static inline int call_code(int index) { return ((int (*)(void))(big_code + (size_t)index * STRIDE))(); }

static inline void check_code(int step)
{
    for (int index = 0; index < FUNCTIONS; index += step)
        if (call_code(index) != index) fail("function %d returns %d", index, call_code(index));
}

static inline void check_constants(int step)
{
    for (uint64_t index = 0; index < WORDS; index += step)
        if (big_constants[index] != index * 3 + 1) fail("constant %lu is %lu", index, big_constants[index]);
}

// Checks that each word of data has its initial value plus `delta`.
static inline void check_data(uint64_t delta)
{
    for (uint64_t index = 0; index < WORDS; index++)
        if (big_data[index] != index * 5 + 2 + delta) fail("word %lu is %lu", index, big_data[index]);
}

static inline void check_all(void)
{
    check_code(1);
    check_constants(1);
}

// The sum of one field of smaps, `AnonHugePages` for example, over the mappings that overlap [start, start + length).
static inline size_t bytes_of(const char *field, const void *start, size_t length)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps);
    char line[4096];
    int inside = 0;
    size_t bytes = 0, named = strlen(field);
    while (fgets(line, sizeof line, smaps)) {
        unsigned long from, to;
        char dash;
        if (sscanf(line, "%lx%c%lx ", &from, &dash, &to) == 3 && dash == '-')
            inside = from < (uintptr_t)start + length && to > (uintptr_t)start;
        else if (inside && !strncmp(line, field, named) && line[named] == ':')
            bytes += strtoul(line + named + 1, NULL, 10) << 10;
    }
    fclose(smaps);
    return bytes;
}

// Bytes on huge pages, of the pool and others, in the mappings that overlap [start, start + length). Huge pages of the
// mapped file do not count.
static inline size_t huge_bytes(const void *start, size_t length, size_t *pool)
{
    size_t hugetlb = bytes_of("Private_Hugetlb", start, length) + bytes_of("Shared_Hugetlb", start, length);
    if (pool) *pool = hugetlb;
    return bytes_of("AnonHugePages", start, length) + hugetlb;
}

static inline long number_in(const char *path)
{
    FILE *file = fopen(path, "r");
    long number = -1;
    if (file) {
        if (fscanf(file, "%ld", &number) != 1) number = -1;
        fclose(file);
    }
    return number;
}

static inline size_t huge_page(void) { return (size_t)number_in("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"); }

// Free pages of the pool.
static inline long free_pool_pages(void)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%zukB/free_hugepages", huge_page() >> 10);
    return number_in(path);
}

static inline int count_entries(const char *path)
{
    DIR *directory = opendir(path);
    CHECK(directory);
    int count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

static inline int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    int count = 0;
    for (int c; (c = getc(maps)) != EOF;) count += c == '\n';
    fclose(maps);
    return count;
}

static inline long resident_kib(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1) break;
    if (status) fclose(status);
    return kib;
}

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

// Waits for a child, and returns its status from waitpid. After the limit the child is killed, since it may block all
// signals.
static inline int status_within(double limit, pid_t child)
{
    int status, ended;
    for (double end = seconds() + limit; (ended = waitpid(child, &status, WNOHANG)) == 0; usleep(200))
        if (seconds() > end) kill(child, SIGKILL);
    CHECK(ended == child);
    return status;
}

static inline void print_line(const char *line, void *context)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

// Whole huge pages in [start, start + length).
static inline size_t whole_pages(const void *start, size_t length)
{
    size_t size = huge_page();
    uintptr_t first = ((uintptr_t)start + size - 1) / size, last = ((uintptr_t)start + length) / size;
    return last > first ? (last - first) * size : 0;
}
#endif
