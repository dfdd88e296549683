// Has a page that never arrives in the place of the dynamic linker's list of objects. A reader of the list waits for
// the page; the list of mappings can be read at once. With `shows` as second argument it hides nothing. At each line of
// input it maps the file as code, as if it had loaded it.
//
//     hides_memory FILE [shows]
//
// build: gcc -O1 -Wall -o $OUT $SRC
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static char *map(size_t length, int protection, int file) {
    char *mapped = mmap(NULL, length, protection, MAP_PRIVATE | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
    check(mapped == MAP_FAILED, "mmap");
    return mapped;
}

static void hide(size_t page) {
    int watch = syscall(SYS_userfaultfd, O_CLOEXEC);
    check(watch < 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    check(ioctl(watch, UFFDIO_API, &api) != 0, "UFFDIO_API");
    unsigned long never = (unsigned long)map(page, PROT_READ | PROT_WRITE, -1);
    struct uffdio_register watched = {.range = {never, page}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    check(ioctl(watch, UFFDIO_REGISTER, &watched) != 0, "UFFDIO_REGISTER");
    for (ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_DEBUG) {
            void *start = (void *)((unsigned long)entry & -page);
            check(mprotect(start, 2 * page, PROT_READ | PROT_WRITE), "mprotect");
            entry->d_un.d_ptr = never;
        }
}

int main(int argc, char **argv) {
    size_t page = sysconf(_SC_PAGESIZE);
    int file = argc < 2 ? -1 : open(argv[1], O_RDONLY);
    check(file < 0, "the file");
    if (argc < 3)
        hide(page);
    // Code without a file: a reader consults the list to find its object.
    map(page, PROT_READ | PROT_EXEC, -1);
    puts("ready");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin))
        map(page, PROT_READ | PROT_EXEC, file);
    return 0;
}
