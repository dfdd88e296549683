// A program's record locks (fcntl) on a mapped file are still held after a call that advises the mapping.
//
// link: shared archive static
// needs: thp
#include "support.h"

enum { SIZE = 4 << 20 };

// Maps the file at a multiple of the huge page, as the page cache needs it.
static void *map(int fd)
{
    size_t huge = huge_page();
    char *room = mmap(NULL, SIZE + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    void *at = (void *)(((uintptr_t)room + huge - 1) / huge * huge);
    CHECK(mmap(at, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    return at;
}

// Another process asks, since a process never meets its own locks.
static int is_locked(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int fd = open("locked", O_RDWR);
        _exit(fd < 0 || fcntl(fd, F_GETLK, &lock) != 0 ? 2 : lock.l_type != F_UNLCK);
    }
    int status = status_within(60, child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status);
}

int main(void)
{
    static char bytes[64 << 10];
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open("locked", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    for (size_t at = 0; at < SIZE; at += sizeof bytes) CHECK(pwrite(fd, bytes, sizeof bytes, at) == sizeof bytes);
    CHECK(fsync(fd) == 0);
    void *data = map(fd);
    CHECK(!is_locked());
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && is_locked());
    pagelift_advise(data, SIZE, &report);
    CHECK(report.considered_bytes == SIZE / huge_page() * huge_page());
    CHECK(is_locked());
    // The program has no descriptor of the file any more, and no lock.
    CHECK(close(fd) == 0 && !is_locked());
    pagelift_advise(data, SIZE, &report);
    CHECK(unlink("locked") == 0);
    puts("ok");
    return 0;
}
