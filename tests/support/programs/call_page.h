/* Access of a hostile program to the page with the calls that it is to make while it is lifted. The page exists only during a
 * lift: system calls read and write it, which fail if it is unmapped. */
#ifndef CALL_PAGE_H
#define CALL_PAGE_H
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CALL_NUMBER = 4, CALL_ARGUMENTS = 5 };
#define NO_CALL UINT64_MAX

static inline int access_page(int call, uintptr_t at, void *own, size_t length) {
    struct iovec here = {own, length}, there = {(void *)at, length};
    return syscall(call, getpid(), &here, 1, &there, 1, 0) == (long)length;
}

/* The call page of a lift that is under way; 0 if there is none. */
static uintptr_t find_call_page(void) {
    static char text[1 << 16];
    int maps = open("/proc/self/maps", O_RDONLY);
    size_t length = 0;
    for (ssize_t got; length < sizeof text - 1 && (got = read(maps, text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(maps);
    text[length] = 0;
    for (char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : 0) {
        char *end, mark[16];
        uintptr_t start = strtoul(line, &end, 16);
        if (strncmp(strchr(end, ' ') + 1, "rw-p", 4)) continue;
        if (access_page(SYS_process_vm_readv, start, mark, sizeof mark) && !memcmp(mark, "pageliftcallpage", 16)) return start;
    }
    return 0;
}

/* Replaces the call in the page by another one. Returns 1 if there was a call, 0 if not, -1 if the page is unmapped. */
static inline int replace_call(uintptr_t page, uint64_t number, const uint64_t *arguments, int count) {
    uint64_t now;
    if (!access_page(SYS_process_vm_readv, page + CALL_NUMBER * 8, &now, 8)) return -1;
    if (now == NO_CALL || now == number) return 0;
    access_page(SYS_process_vm_writev, page + CALL_ARGUMENTS * 8, (void *)(uintptr_t)arguments, (size_t)count * 8);
    return access_page(SYS_process_vm_writev, page + CALL_NUMBER * 8, &number, 8);
}
#endif
