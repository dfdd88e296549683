// Memory that the program has mapped itself is on huge pages after a call: anonymous memory, and a file that other
// descriptors have read in small pages. Contents stay, also after calls with invalid arguments.
//
// link: shared archive static
// needs: thp
// needs: large-folios
// needs: kernel 6.18
#include "support.h"

enum { SIZE = 8 << 20 };

static pagelift_report report = PAGELIFT_REPORT_EMPTY;

static int advise(void *at, size_t length) { return pagelift_advise(at, length, &report); }

// If the kernel has no free huge page, memory is compacted and the call repeated.
static int advise_with_memory(void *at, size_t length)
{
    int result = advise(at, length);
    for (int tries = 0; tries < 10 && result != PAGELIFT_OK; tries++) {
        int fd = open("/proc/sys/vm/compact_memory", O_WRONLY);
        if (fd >= 0) write(fd, "1", 1), close(fd);
        result = advise(at, length);
    }
    return result;
}

// Maps at an address whose distance from a huge page is `off`.
static unsigned char *map(int protection, int flags, int fd, size_t off)
{
    size_t huge = huge_page();
    char *room = mmap(NULL, SIZE + 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    char *at = (char *)(((uintptr_t)room + huge - 1) / huge * huge) + off;
    CHECK(mmap(at, SIZE, protection, flags | MAP_FIXED, fd, 0) == at);
    return (unsigned char *)at;
}

static void check_bytes(const unsigned char *at)
{
    for (size_t index = 0; index < SIZE; index++) CHECK(at[index] == (unsigned char)(index / 4096 * 7 + index));
}

static void fill(unsigned char *at)
{
    for (size_t index = 0; index < SIZE; index++) at[index] = (unsigned char)(index / 4096 * 7 + index);
}

static void anonymous(void)
{
    unsigned char *at = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(madvise(at, SIZE, MADV_NOHUGEPAGE) == 0);
    fill(at);
    CHECK(madvise(at + SIZE / 2, SIZE / 2, MADV_DONTNEED) == 0);
    CHECK(advise_with_memory(at, SIZE) == PAGELIFT_OK);
    CHECK(report.considered_bytes == SIZE && report.thp_bytes == SIZE / 2 && report.advised_bytes == SIZE / 2);
    CHECK(huge_bytes(at, SIZE, NULL) == SIZE / 2);
    fill(at);
    CHECK(advise_with_memory(at, SIZE) == PAGELIFT_OK && huge_bytes(at, SIZE, NULL) == SIZE);
    check_bytes(at);
    CHECK(pagelift_advise(at, SIZE, NULL) == PAGELIFT_OK);
    // Parts of huge pages do not count.
    CHECK(advise(at + 1, huge_page()) == PAGELIFT_NOTHING && strstr(report.message, "no whole huge page"));
    CHECK(mprotect(at, SIZE, PROT_NONE) == 0);
    CHECK(advise(at, SIZE) == PAGELIFT_NOTHING && strstr(report.message, "not readable"));
    CHECK(munmap(at + 4096, 4096) == 0);
    CHECK(advise(at, SIZE) == PAGELIFT_INVALID && strstr(report.message, "found no memory at"));
}

// The machine's settings decide how much of the memory is huge.
static void shared_memory(void)
{
    int fd = memfd_create("advised", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    unsigned char *at = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fill(at);
    int result = advise(at, SIZE);
    CHECK(report.considered_bytes == SIZE && report.file_bytes == bytes_of("ShmemPmdMapped", at, SIZE));
    CHECK(result == (report.file_bytes == SIZE ? PAGELIFT_OK : report.file_bytes ? PAGELIFT_PARTIAL : PAGELIFT_NOTHING));
    check_bytes(at);
    CHECK(munmap(at, SIZE) == 0 && close(fd) == 0);
}

static void file(int shared)
{
    unsigned char *bytes = malloc(SIZE);
    fill(bytes);
    int fd = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    // Written in small pieces, for small folios.
    for (size_t at = 0; at < SIZE; at += 64 << 10) CHECK(pwrite(fd, bytes + at, 64 << 10, at) == 64 << 10);
    CHECK(fsync(fd) == 0);
    int flags = shared ? MAP_SHARED : MAP_PRIVATE;
    unsigned char *at = map(PROT_READ, flags, fd, 0);
    check_bytes(at);
    CHECK(bytes_of("FilePmdMapped", at, SIZE) == 0);
    CHECK(advise_with_memory(at, SIZE) == PAGELIFT_OK);
    CHECK(report.considered_bytes == SIZE && report.file_bytes == SIZE && report.covered_bytes == SIZE);
    CHECK(bytes_of("FilePmdMapped", at, SIZE) == SIZE);
    check_bytes(at);
    // Later writes to the file are visible.
    CHECK(pwrite(fd, "x", 1, 0) == 1 && at[0] == 'x');
    CHECK(pwrite(fd, bytes, 1, 0) == 1);
    check_bytes(at);

    unsigned char *askew = map(PROT_READ, flags, fd, 4096);
    check_bytes(askew);
    CHECK(advise(askew, SIZE) == PAGELIFT_NOTHING && strstr(report.message, "disagree by 4"));
    unsigned char *own = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    own[12345] = 1;
    CHECK(advise(own, SIZE) == PAGELIFT_NOTHING && strstr(report.message, "may be written"));
    // The program wrote to a block before the protection: this block is not changed.
    CHECK(mprotect(own, SIZE, PROT_READ) == 0);
    CHECK(advise(own, SIZE) == PAGELIFT_PARTIAL && own[12345] == 1);
    unsigned char *written = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    written[0] = 2;
    advise(written, SIZE);
    CHECK(written[0] == 2 && at[0] == 2);
    CHECK(munmap(at, SIZE) == 0 && munmap(askew, SIZE) == 0 && munmap(own, SIZE) == 0 && munmap(written, SIZE) == 0);
    close(fd);
    unlink("data");
    free(bytes);
}

int main(void)
{
    anonymous();
    shared_memory();
    file(0);
    file(1);
    CHECK(advise(NULL, 0) == PAGELIFT_INVALID && advise(NULL, 1 << 30) == PAGELIFT_INVALID);
    CHECK(advise((void *)4096, (size_t)-1) == PAGELIFT_INVALID);
    CHECK(advise((void *)-8192, 8191) == PAGELIFT_INVALID);
    puts("ok");
    return 0;
}
