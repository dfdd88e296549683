// Edge cases of the allocator's functions, as in malloc(3), related pages and the GNU C library: no bytes, too many
// bytes, wrong alignments, unchanged contents, memory that is usable to its end, errno, other libraries' blocks, forks,
// and threads that end with blocks in use.
//
// build: gcc -g -O1 -Wall -Wno-alloc-size-larger-than -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <gnu/libc-version.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                      \
    do {                                                                                                                 \
        if (!(what)) {                                                                                                   \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno);                                         \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)
/* `what` returns null and sets errno to `why`. */
#define REFUSED(what, why)                                                                                               \
    do {                                                                                                                 \
        errno = 0;                                                                                                       \
        CHECK((what) == NULL && errno == (why));                                                                         \
    } while (0)

enum { MOST = 48 << 20, HELD = 100 };

/* Volatile, so that the compiler does not know the values. */
static volatile size_t huge = PTRDIFF_MAX, all = SIZE_MAX, three = 3;

static void nothing(void) {
    void *one = malloc(0), *other = malloc(0), *zero = calloc(0, 5);
    CHECK(one && other && zero && one != other);
    free(one);
    free(other);
    free(zero);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK((one = realloc(NULL, 0)) != NULL);
    CHECK(realloc(one, 0) == NULL);
    CHECK(realloc(malloc(30 << 20), 0) == NULL);
    CHECK((one = realloc(NULL, 100)) != NULL);
    memset(one, 1, 100);
    free(one);
}

static void too_much(void) {
    void *block = malloc(1000), *place = &block;
    memset(block, 7, 1000);
    for (size_t size = huge - 3; size <= huge + 3; size++) {
        REFUSED(malloc(size), ENOMEM);
        REFUSED(calloc(1, size), ENOMEM);
        REFUSED(realloc(block, size), ENOMEM);
        REFUSED(aligned_alloc(64, size), ENOMEM);
        REFUSED(memalign(2 << 20, size), ENOMEM);
        REFUSED(valloc(size), ENOMEM);
        REFUSED(pvalloc(size), ENOMEM);
        CHECK(posix_memalign(&place, 64, size) == ENOMEM && place == &block);
    }
    REFUSED(malloc(all), ENOMEM);
    REFUSED(realloc(block, all), ENOMEM);
    REFUSED(pvalloc(all), ENOMEM);
    REFUSED(calloc(all / 2, three), ENOMEM);
    REFUSED(calloc(all, all), ENOMEM);
    REFUSED(reallocarray(block, all / 2, three), ENOMEM);
    REFUSED(reallocarray(NULL, all, 2), ENOMEM);
    for (int i = 0; i < 1000; i++)
        CHECK(((char *)block)[i] == 7);
    free(block);
}

/* memalign uses the next power of two. aligned_alloc does the same up to glibc 2.37, and later refuses other
   alignments. */
static void odd_alignments(void) {
    const size_t odd[] = {0, 3, 24, 48, 100, 3 * 4096, (3 << 20) + 1};
    int minor = atoi(gnu_get_libc_version() + 2);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        size_t next = 1;
        while (next < odd[i])
            next *= 2;
        for (size_t size = 0; size < 20 << 20; size = size * 7 + 48) {
            void *block = memalign(odd[i], size);
            CHECK(block && (uintptr_t)block % next == 0);
            memset(block, 3, size);
            free(block);
            errno = 0;
            block = aligned_alloc(odd[i], size);
            if (minor < 38) {
                CHECK(block && (uintptr_t)block % next == 0);
                memset(block, 3, size);
                free(block);
            } else {
                CHECK(!block && errno == EINVAL);
            }
        }
    }
    REFUSED(memalign(all / 2 + 2, 8), EINVAL);
    REFUSED(aligned_alloc(all / 2 + 2, 8), EINVAL);
}

static void alignments(void) {
    void *block = &block;
    const size_t wrong[] = {0, 1, 2, 4, 3, 12, 24, 100, 3 * sizeof(void *)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(posix_memalign(&block, wrong[i], 64) == EINVAL && block == &block);
    for (size_t align = sizeof(void *); align <= 8 << 20; align *= 2)
        for (size_t size = 0; size <= 3 * align; size += 1 + size + align / 2) {
            CHECK(posix_memalign(&block, align, size) == 0 && block && (uintptr_t)block % align == 0);
            memset(block, 3, size);
            free(block);
            CHECK((block = memalign(align, size)) && (uintptr_t)block % align == 0);
            memset(block, 3, size);
            /* realloc keeps contents, not alignment. */
            CHECK((block = realloc(block, size + 100)) && (size == 0 || ((char *)block)[size - 1] == 3));
            free(block);
            CHECK((block = aligned_alloc(align, size)) && (uintptr_t)block % align == 0);
            free(block);
        }
    odd_alignments();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK((block = valloc(10)) && (uintptr_t)block % page == 0);
    free(block);
    CHECK((block = pvalloc(page + 1)) && (uintptr_t)block % page == 0 && malloc_usable_size(block) >= 2 * page);
    free(block);
}

static void whole(const unsigned char *block, size_t size, unsigned char tag) {
    for (size_t at = 0; at < size; at += size < 65536 ? 1 : 997)
        CHECK(block[at] == tag);
    CHECK(size == 0 || block[size - 1] == tag);
}

/* Resizes through all classes of sizes, up and down; each block is written to its usable end. */
static void sizes(void) {
    unsigned char *block = NULL;
    size_t before = 0;
    for (int round = 0; round < 2; round++)
        for (size_t size = 1; size < MOST; size += 1 + size / 3) {
            size_t now = round == 0 ? size : MOST / size;
            CHECK((block = realloc(block, now)) && malloc_usable_size(block) >= now);
            whole(block, before < now ? before : now, 9);
            memset(block, 9, malloc_usable_size(block));
            before = now;
        }
    free(block);
    for (size_t size = 1; size < MOST; size += 1 + size / 2) {
        unsigned char *first = malloc(size), *second = calloc(size, 1);
        memset(first, 5, malloc_usable_size(first));
        whole(second, size, 0);
        memset(second, 6, malloc_usable_size(second));
        whole(first, malloc_usable_size(first), 5);
        free(first);
        free(second);
        CHECK((second = calloc(1, size)) != NULL);
        whole(second, size, 0);
        free(second);
    }
}

static void errno_stays(void) {
    for (size_t size = 1; size < MOST; size *= 3) {
        void *block = malloc(size);
        errno = 77;
        free(block);
        CHECK(errno == 77);
    }
    /* Also if madvise(2) fails: more than a heap keeps, with locked pages in between. */
    enum { BLOCK = 64 << 10, BLOCKS = 1024, LOCKED = 64, PAGE = 4096 };
    static char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(BLOCK)) != NULL);
        memset(blocks[i], 1, BLOCK);
        if (i % LOCKED == 0) mlock(blocks[i], PAGE);
    }
    for (int i = 0; i < BLOCKS; i++) {
        errno = 77;
        free(blocks[i]);
        CHECK(errno == 77);
    }
}

/* The program frees blocks from functions of the C library, and these functions extend the program's blocks. */
static void with_the_c_library(void) {
    char *text = strdup("hello"), *line = malloc(4), *printed = NULL;
    size_t room = 4;
    CHECK(text && realloc(text, 100) != NULL);
    CHECK(asprintf(&printed, "%0*d", 70000, 1) == 70000);
    FILE *file = tmpfile();
    CHECK(file && fprintf(file, "%s\n", printed) == 70001);
    rewind(file);
    CHECK(getline(&line, &room, file) == 70001 && room >= 70002 && malloc_usable_size(line) >= 70002);
    CHECK(strncmp(line, printed, 70000) == 0);
    fclose(file);
    free(line);
    free(printed);
    char *folder = getcwd(NULL, 0), *real = realpath("/", NULL);
    CHECK(folder && real);
    free(folder);
    free(real);
    char *made = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&made, &length);
    for (int i = 0; i < 100000; i++)
        fputs("some text ", memory);
    fclose(memory);
    CHECK(length == 1000000);
    free(made);
}

static void *hold(void *blocks) {
    for (int i = 0; i < HELD; i++) {
        size_t size = (size_t)37 << i % 18;
        memset(((void **)blocks)[i] = malloc(size), i, size);
    }
    return NULL;
}

/* Blocks outlive their thread, in the child of a fork too. */
static void others(void) {
    static void *blocks[8][HELD];
    pthread_t threads[8];
    int status;
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, hold, blocks[i]) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    for (int i = 0; i < 8; i++)
        for (int at = 0; at < HELD; at++) {
            whole(blocks[i][at], (size_t)37 << at % 18, (unsigned char)at);
            CHECK(at % 2 || (blocks[i][at] = realloc(blocks[i][at], (size_t)50 << at % 18)));
            whole(blocks[i][at], (size_t)37 << at % 18, (unsigned char)at);
            free(blocks[i][at]);
        }
    if (child == 0) {
        sizes();
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    nothing();
    too_much();
    alignments();
    sizes();
    errno_stays();
    with_the_c_library();
    others();
    sizes();
    puts("all is well");
    return 0;
}
