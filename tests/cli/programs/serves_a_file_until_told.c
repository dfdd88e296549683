// A file system of one file, as a user's program may serve it: it answers until it gets a line on its standard input.
// Later requests get no answer, so that all callers wait. It never answers a request to write. Run by root:
//
//     serves_a_file_until_told FOLDER FILE USER
//
// FOLDER/file then has the contents of FILE; the user USER serves it.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROOT = FUSE_ROOT_ID, FILE_NODE = 2, MOST_READ = 1 << 17, BUFFER = 1 << 18 };

static int device, file;
static struct stat contents;

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void answer(const struct fuse_in_header *request, int error, const void *body, size_t length) {
    struct fuse_out_header header = {.len = sizeof header + length, .error = -error, .unique = request->unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)body, length}};
    // ENOENT: the caller was interrupted.
    check(writev(device, parts, 2) < 0 && errno != ENOENT, "answering");
}

static struct fuse_attr attributes(unsigned long node) {
    struct fuse_attr found = {.ino = node, .nlink = 1, .mode = S_IFDIR | 0755, .blksize = 4096};
    if (node == FILE_NODE) {
        found.mode = S_IFREG | 0755;
        found.size = contents.st_size;
    }
    return found;
}

static void look_up(const struct fuse_in_header *request, const char *name) {
    if (request->nodeid != ROOT || strcmp(name, "file")) {
        answer(request, ENOENT, NULL, 0);
        return;
    }
    struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attributes(FILE_NODE)};
    answer(request, 0, &entry, sizeof entry);
}

static void read_file(const struct fuse_in_header *request, const struct fuse_read_in *wanted) {
    static char bytes[MOST_READ];
    size_t length = wanted->size < MOST_READ ? wanted->size : MOST_READ;
    ssize_t count = pread(file, bytes, length, wanted->offset);
    check(count < 0, "reading");
    answer(request, 0, bytes, count);
}

static void serve(char *bytes) {
    const struct fuse_in_header *request = (void *)bytes;
    const void *body = bytes + sizeof *request;
    struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 1 << 16};
    struct fuse_attr_out attr = {.attr = attributes(request->nodeid)};
    struct fuse_open_out open = {0};
    struct fuse_statfs_out statfs = {.st = {.bsize = 4096, .namelen = 255}};
    switch (request->opcode) {
    case FUSE_INIT: answer(request, 0, &init, sizeof init); break;
    case FUSE_LOOKUP: look_up(request, body); break;
    case FUSE_GETATTR: answer(request, 0, &attr, sizeof attr); break;
    case FUSE_OPEN:
    case FUSE_OPENDIR: answer(request, 0, &open, sizeof open); break;
    case FUSE_READ: read_file(request, body); break;
    case FUSE_STATFS: answer(request, 0, &statfs, sizeof statfs); break;
    case FUSE_RELEASE:
    case FUSE_FLUSH: answer(request, 0, NULL, 0); break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
    // Gets no answer: a process that writes to the file waits.
    case FUSE_WRITE: break;
    default: answer(request, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv) {
    static char bytes[BUFFER];
    check(argc != 4, "needed: a folder, a file and a user");
    file = open(argv[2], O_RDONLY);
    check(file < 0 || fstat(file, &contents), argv[2]);
    device = open("/dev/fuse", O_RDWR);
    check(device < 0, "/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%s,group_id=%s,allow_other", device, argv[3], argv[3]);
    check(mount("test", argv[1], "fuse.test", MS_NOSUID | MS_NODEV, options), "mount");
    puts("ready");
    fflush(stdout);
    int answers = 1;
    struct pollfd waits[2] = {{device, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    for (;;) {
        check(poll(waits, 2, -1) < 0, "poll");
        if (waits[0].revents) {
            ssize_t length = read(device, bytes, sizeof bytes);
            // ENODEV: the file system has been unmounted.
            if (length < 0 && errno == ENODEV)
                return 0;
            check(length < 0 && errno != ENOENT && errno != EINTR, "reading a request");
            // A signal cannot end a call whose request was read and gets no answer.
            if (length > 0 && answers)
                serve(bytes);
        }
        if (waits[1].revents) {
            char line[16];
            // At the end of its input the server ends, and all waiting callers get an error.
            if (read(STDIN_FILENO, line, sizeof line) <= 0)
                return 0;
            answers = 0;
            puts("silent");
            fflush(stdout);
        }
    }
}
