// `give FILE` sets the file's owner, mode, times, access control list, capabilities, extended attributes and flags;
// `show FILE` prints all of these and a sum of its bytes; `hold FILE` keeps a page of each 64 KiB in use by a pipe
// until the program is killed, so that the kernel can neither collapse nor evict the file; `protect FILE` enables
// fs-verity, after which nobody can write the file.
//
// build: gcc -O1 -o $OUT $SRC
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

/* Header, then tag, permissions and number of each entry: owner, user 1000, group, mask, others (linux/posix_acl_xattr.h). */
static const unsigned char access_list[] = {
    2,    0, 0, 0,                              /* version */
    1,    0, 7, 0, 0xff, 0xff, 0xff, 0xff,      /* owner: rwx */
    2,    0, 5, 0, 0xe8, 0x03, 0,    0,         /* user 1000: r-x */
    4,    0, 1, 0, 0xff, 0xff, 0xff, 0xff,      /* group: --x */
    0x10, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,      /* mask: r-x */
    0x20, 0, 1, 0, 0xff, 0xff, 0xff, 0xff,      /* others: --x */
};

/* CAP_NET_BIND_SERVICE, permitted and effective (linux/capability.h, VFS_CAP_REVISION_2). */
static const unsigned char capabilities[20] = {1, 0, 0, 2, 0, 4};

static void give(const char *path) {
    const struct timespec times[2] = {{1000000007, 123456789}, {1000000009, 987654321}};
    int flags = 0, file = open(path, O_RDONLY);
    check(file < 0, path);
    check(fchown(file, 1234, 4321), "chown");
    check(fchmod(file, 0751), "chmod");
    check(setxattr(path, "system.posix_acl_access", access_list, sizeof access_list, 0), "access control list");
    check(setxattr(path, "security.capability", capabilities, sizeof capabilities, 0), "capabilities");
    check(setxattr(path, "user.note", "a\0b", 3, 0), "user.note");
    check(setxattr(path, "trusted.note", "", 0, 0), "trusted.note");
    check(ioctl(file, FS_IOC_GETFLAGS, &flags), "reading attributes");
    flags |= FS_NODUMP_FL;
    check(ioctl(file, FS_IOC_SETFLAGS, &flags), "setting attributes");
    check(futimens(file, times), "times");
}

static int by_name(const void *one, const void *other) {
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

static void show_extended(const char *path) {
    static char names[4096], value[4096];
    char *sorted[64];
    size_t count = 0;
    ssize_t length = listxattr(path, names, sizeof names);
    check(length < 0, "listxattr");
    for (char *name = names; name < names + length && count < 64; name += strlen(name) + 1)
        sorted[count++] = name;
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 0; i < count; i++) {
        ssize_t bytes = getxattr(path, sorted[i], value, sizeof value);
        check(bytes < 0, sorted[i]);
        printf("%s:", sorted[i]);
        for (ssize_t at = 0; at < bytes; at++)
            printf(" %02x", (unsigned char)value[at]);
        printf("\n");
    }
}

static void show(const char *path) {
    static unsigned char buffer[1 << 16];
    struct stat found;
    int flags = 0, file = open(path, O_RDONLY | O_NOATIME);
    uint64_t sum = 0;
    check(file < 0 || fstat(file, &found), path);
    check(ioctl(file, FS_IOC_GETFLAGS, &flags), "reading attributes");
    printf("mode %o, owner %u:%u, %lld bytes, no-dump %d\n", found.st_mode, found.st_uid, found.st_gid,
           (long long)found.st_size, !!(flags & FS_NODUMP_FL));
    printf("used %lld.%09ld, changed %lld.%09ld\n", (long long)found.st_atim.tv_sec, found.st_atim.tv_nsec,
           (long long)found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
    show_extended(path);
    for (ssize_t bytes; (bytes = read(file, buffer, sizeof buffer)) > 0;)
        for (ssize_t i = 0; i < bytes; i++)
            sum = (sum ^ buffer[i]) * 0x100000001b3;
    printf("contents %llx\n", (unsigned long long)sum);
}

static void hold(const char *path) {
    struct stat found;
    int ends[2], file = open(path, O_RDONLY);
    check(file < 0 || fstat(file, &found) || pipe(ends), path);
    check(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 0, "size of the pipe");
    for (off64_t at = 0; at < found.st_size; at += 1 << 16) {
        off64_t from = at;
        check(splice(file, &from, ends[1], NULL, 4096, SPLICE_F_NONBLOCK) < 0 && at < 250 << 16, "splice");
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

static void protect(const char *path) {
    struct fsverity_enable_arg how = {.version = 1, .hash_algorithm = FS_VERITY_HASH_ALG_SHA256, .block_size = 4096};
    int file = open(path, O_RDONLY);
    check(file < 0 || ioctl(file, FS_IOC_ENABLE_VERITY, &how), path);
}

int main(int count, char **words) {
    void (*acts[])(const char *) = {give, show, hold, protect};
    const char *names[] = {"give", "show", "hold", "protect"};
    for (int i = 0; count == 3 && i < 4; i++)
        if (strcmp(words[1], names[i]) == 0) {
            acts[i](words[2]);
            return 0;
        }
    fprintf(stderr, "usage: metadata_of_a_file give|show|hold|protect FILE\n");
    return 2;
}
