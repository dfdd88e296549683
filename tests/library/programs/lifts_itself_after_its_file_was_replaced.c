// Another file takes the path of the program's file before the program lifts itself from its file: the huge pages show
// the file that was executed. The program sees an older kernel, on which it maps its file once more.
//
// link: archive
// under: setarch --uname-2.6
// flags: -Wl,-z,max-page-size=2097152
// needs: thp
// needs: large-folios
// needs: kernel 6.7
// needs: command setarch
#include "support.h"
#include <sys/stat.h>

// Maps a file, collapses what the kernel can, and returns the bytes that huge pages show. The kernel collapses pages of a
// file that have been written back, before Linux 6.12 in executable mappings only.
static size_t huge_bytes_of(const char *path)
{
    size_t huge = huge_page();
    struct stat status;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fsync(fd) == 0 && fstat(fd, &status) == 0);
    size_t length = status.st_size / huge * huge;
    char *room = mmap(NULL, length + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    char *at = (char *)(((uintptr_t)room + huge - 1) / huge * huge);
    CHECK(mmap(at, length, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == at);
    for (size_t block = 0; block < length; block += huge) {
        madvise(at + block, huge, 25); // MADV_COLLAPSE
        (void)*(volatile char *)(at + block);
    }
    size_t found = bytes_of("FilePmdMapped", at, length);
    munmap(room, length + huge);
    close(fd);
    return found;
}

int main(void)
{
    char self[4096] = { 0 }, other[4200];
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(other, sizeof other, "%s.new", self);
    FILE *file = fopen(other, "w");
    CHECK(file);
    for (int index = 0; index < 40 << 20; index++) putc(0xcc, file);
    fclose(file);
    CHECK(chmod(other, 0755) == 0);
    size_t found = huge_bytes_of("/proc/self/exe");
    huge_bytes_of(other);
    CHECK(rename(other, self) == 0);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_FILE;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int lifted = pagelift_lift(&options, &report);
    check_all();
    if (found > 0 && report.covered_bytes == 0) fail("lift: %d, %zu bytes of the file are huge", lifted, found);
    puts("ok");
    return 0;
}
