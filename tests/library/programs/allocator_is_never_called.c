// The executable has its own allocator and its own mmap. During a lift the library calls neither these nor any other
// watched function of the C library.
//
// link: shared archive
// needs: pool 64M
#include "support.h"
#include <sys/syscall.h>

static volatile int lifting, calls;
static char store[1 << 20];
static size_t used;

static void note(void)
{
    if (lifting) calls++;
}
void *malloc(size_t size)
{
    note();
    size_t at = (used + 15) & ~(size_t)15;
    used = at + size;
    return used > sizeof store ? NULL : store + at;
}
void free(void *block) { (void)block, note(); }
void *calloc(size_t count, size_t size) { return malloc(count * size); }
void *realloc(void *block, size_t size)
{
    void *fresh = malloc(size);
    if (fresh && block) memmove(fresh, block, size);
    return fresh;
}
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    note();
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
int munmap(void *at, size_t length)
{
    note();
    return syscall(SYS_munmap, at, length);
}
int mprotect(void *at, size_t length, int protection)
{
    note();
    return syscall(SYS_mprotect, at, length, protection);
}
int open(const char *path, int flags, ...)
{
    note();
    return syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}
ssize_t read(int fd, void *buffer, size_t length)
{
    note();
    return syscall(SYS_read, fd, buffer, length);
}
#if defined(__x86_64__)
// Calls that the compiler adds would use this function too.
void *memcpy(void *to, const void *from, size_t length)
{
    if (lifting) calls++;
    void *start = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
    return start;
}
#endif

int main(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.writable_pages = PAGELIFT_WRITABLE_HUGETLB;
    // The first lift registers handlers around fork in the C library, which may allocate.
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    lifting = 1;
    int result = pagelift_lift(&options, &report);
    lifting = 0;
    if (calls || result < 0) fail("%d calls, %s", calls, pagelift_error_text(result));
    CHECK(report.hugetlb_bytes >= 12 << 20);
    check_all();
    check_data(0);
    lifting = 1;
    result = pagelift_restore(NULL, NULL);
    lifting = 0;
    CHECK(calls == 0 && result == PAGELIFT_OK);
    check_all();
    check_data(0);
    write(1, "ok\n", 3);
    return 0;
}
