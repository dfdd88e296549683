// Expectations of programs about malloc and related functions, checked with the C library's heap and with others.
//
//   does_as_the_c_library grow       refused reallocs beside threads that map and unmap memory of their own
//   does_as_the_c_library protect    a large block is freed while it is read-only
//   does_as_the_c_library guard      a large block is freed while it has guard pages
//   does_as_the_c_library dontfork   a large block is freed while children do not get it
//   does_as_the_c_library sandbox    a filter that allows only what the C library's allocator calls, then blocks of all sizes
//   does_as_the_c_library filter     the same by seccomp(2)
//   does_as_the_c_library threads    the same with a thread that allocates nothing before
//   does_as_the_c_library parts      a block of which a part has another setting grows
//   does_as_the_c_library errno      successful calls leave errno, with all memory locked
//   does_as_the_c_library align      every block is aligned to 16 bytes
//   does_as_the_c_library little     small blocks with a large alignment need little memory
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, LARGE = 40 * MIB, MAPPERS = 4, REFUSED = 4000 };

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

static volatile int done;

// Maps memory, writes its own number there, and finds it again.
static void *maps(void *number) {
    char own = (char)(long)number;
    while (!done) {
        size_t size = 4 * MIB;
        char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            continue;
        for (size_t i = 0; i < size; i += MIB / 16)
            at[i] = own;
        for (size_t i = 0; i < size; i += MIB / 16)
            if (at[i] != own)
                _exit(fail("a mapping of the program was replaced"));
        munmap(at, size);
    }
    return NULL;
}

static int grow(void) {
    struct sysinfo info;
    sysinfo(&info);
    size_t too_much = (info.totalram + info.totalswap) * info.mem_unit + ((size_t)1 << 30);
    pthread_t threads[MAPPERS];
    for (long i = 0; i < MAPPERS; i++)
        pthread_create(&threads[i], NULL, maps, (void *)(i + 1));
    char *block = malloc(LARGE / 2);
    memset(block, 7, LARGE / 2);
    for (int i = 0; i < REFUSED; i++)
        if (realloc(block, too_much))
            return fail("a block larger than the memory");
    done = 1;
    for (int i = 0; i < MAPPERS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < LARGE / 2; i++)
        if (block[i] != 7)
            return fail("the block has changed");
    block = realloc(block, LARGE);
    return block && block[LARGE / 2 - 1] == 7 ? 0 : fail("the block does not grow afterwards");
}

static int protect(void) {
    char *block = aligned_alloc(4096, LARGE);
    memset(block, 1, LARGE);
    mprotect(block, 10 * 4096, PROT_READ);
    free(block);
    block = malloc(LARGE);
    memset(block, 2, LARGE);
    return block[LARGE - 1] == 2 ? 0 : fail("another value");
}

static int guard(void) {
    enum { GUARD_INSTALL = 102 };
    for (size_t size = LARGE; size <= 5 * (size_t)LARGE; size += 4 * (size_t)LARGE) {
        char *block = aligned_alloc(4096, size);
        memset(block, 1, size);
        // Unknown before Linux 6.13.
        if (madvise(block, 10 * 4096, GUARD_INSTALL))
            return 0;
        free(block);
        block = malloc(size);
        memset(block, 2, size);
        if (block[size - 1] != 2)
            return fail("another value");
        free(block);
    }
    return 0;
}

static int dontfork(void) {
    char *block = aligned_alloc(4096, LARGE);
    memset(block, 1, LARGE);
    madvise(block, LARGE, MADV_DONTFORK);
    free(block);
    block = malloc(LARGE);
    memset(block, 2, LARGE);
    if (fork() == 0)
        _exit(block[LARGE / 2] == 2 ? 0 : 1);
    int status;
    wait(&status);
    return status == 0 ? 0 : fail("the child has not got the block");
}

#define ALLOWED(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static int uses_blocks(void) {
    for (int round = 0; round < 5; round++)
        for (size_t size = 1; size <= 160 * MIB; size = size * 3 + 1) {
            char *block = calloc(1, size), *end = block + size;
            if (!block || block[0] || end[-1])
                return fail("calloc");
            memset(block, 1, size);
            block = realloc(block, size * 2);
            if (!block || !block[size - 1])
                return fail("realloc");
            free(block);
        }
    return 0;
}

static pthread_barrier_t filtered;

// 1 and the result, once it is known.
static int thread_is_done;

static void *uses_blocks_later(void *unused) {
    (void)unused;
    // It has made the calls of a new thread.
    pthread_barrier_wait(&filtered);
    pthread_barrier_wait(&filtered);
    __atomic_store_n(&thread_is_done, 1 + uses_blocks(), __ATOMIC_RELEASE);
    for (;;)
        ;
    return NULL;
}

enum by { BY_PRCTL, BY_SECCOMP, FOR_ALL_THREADS };

static int sandbox(enum by by) {
    free(malloc(100));
    pthread_t thread;
    pthread_barrier_init(&filtered, NULL, 2);
    if (by == FOR_ALL_THREADS) {
        pthread_create(&thread, NULL, uses_blocks_later, NULL);
        pthread_barrier_wait(&filtered);
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOWED(SYS_brk), ALLOWED(SYS_mmap), ALLOWED(SYS_munmap), ALLOWED(SYS_mremap), ALLOWED(SYS_madvise), ALLOWED(SYS_mprotect),
        ALLOWED(SYS_futex), ALLOWED(SYS_write), ALLOWED(SYS_exit_group), ALLOWED(SYS_clock_gettime),
        // The C library counts the CPUs for the memory of a second thread.
        ALLOWED(SYS_sched_getaffinity),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return fail("PR_SET_NO_NEW_PRIVS");
    int flags = by == FOR_ALL_THREADS ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    if (by == BY_PRCTL ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                       : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program))
        return fail("no filter");
    if (by == FOR_ALL_THREADS) {
        pthread_barrier_wait(&filtered);
        if (uses_blocks())
            return 1;
        // The thread ends by calls that the filter does not allow.
        for (;;)
            if (__atomic_load_n(&thread_is_done, __ATOMIC_ACQUIRE))
                _exit(thread_is_done - 1);
    }
    return malloc((size_t)1 << 45) == NULL ? uses_blocks() : fail("a block of 32 TiB");
}

// Blocks that to the kernel are several mappings are copied when they grow. Addresses stay free for others.
static int parts(void) {
    for (int round = 0; round < 12; round++) {
        char *block = aligned_alloc(4096, LARGE);
        memset(block, 5, LARGE);
        madvise(block + MIB, MIB, MADV_DONTDUMP);
        // Nothing fits behind it.
        void *behind = malloc(LARGE);
        block = realloc(block, 3 * (size_t)LARGE);
        if (!block || block[LARGE - 1] != 5)
            return fail("realloc");
        free(block);
        free(behind);
    }
    malloc_trim(0);
    long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    if (fscanf(sizes, "%ld", &pages) != 1)
        return fail("statm");
    fclose(sizes);
    fprintf(stderr, "%ld MiB of addresses\n", pages / 256);
    return pages / 256 < 600 ? 0 : fail("too many addresses");
}

static int keeps_errno(void) {
    enum { BLOCKS = 4000, ROUNDS = 12 };
    static void *blocks[BLOCKS];
    if (mlockall(MCL_CURRENT | MCL_FUTURE))
        return fail("mlockall");
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            errno = 99;
            blocks[i] = malloc(16 + rand() % 60000);
            blocks[i] = realloc(blocks[i], 16 + rand() % 90000);
            if (!blocks[i] || errno != 99)
                return fail("malloc or realloc has changed errno");
        }
        for (int i = 0; i < BLOCKS; i++) {
            free(blocks[i]);
            if (errno != 99)
                return fail("free has changed errno");
        }
        // Memory is given back by time.
        nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    }
    return 0;
}

static int aligned_to_16(void *block) { return block && (uintptr_t)block % 16 == 0; }

static int align(void) {
    for (size_t size = 0; size <= 200; size++)
        for (int i = 0; i < 50; i++) {
            void *block;
            if (!aligned_to_16(malloc(size)) || !aligned_to_16(calloc(1, size)) || !aligned_to_16(realloc(malloc(1), size + 1)) ||
                !aligned_to_16(memalign(8, size)) || posix_memalign(&block, 8, size) || !aligned_to_16(block))
                return fail("a block that is not aligned to 16 bytes");
        }
    return 0;
}

static int little(void) {
    enum { BLOCKS = 300 };
    // The mapping of a freed block serves another one.
    memset(malloc(LARGE), 1, 1);
    void *freed = malloc(LARGE);
    memset(freed, 1, LARGE);
    free(freed);
    for (int i = 0; i < 2 * BLOCKS; i++) {
        void *block;
        if (posix_memalign(&block, 128 << 10, 4096) || (uintptr_t)block % (128 << 10))
            return fail("posix_memalign");
        memset(block, 1, 4096);
        if (i % 2)
            free(block);
    }
    char line[256];
    long resident = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmRSS: %ld", &resident);
    fclose(status);
    fprintf(stderr, "%ld KiB are resident\n", resident);
    return resident < 64 << 10 ? 0 : fail("too much memory");
}

int main(int count, char **words) {
    const char *word = count > 1 ? words[1] : "";
    if (!strcmp(word, "grow"))
        return grow();
    if (!strcmp(word, "protect"))
        return protect();
    if (!strcmp(word, "guard"))
        return guard();
    if (!strcmp(word, "dontfork"))
        return dontfork();
    if (!strcmp(word, "sandbox"))
        return sandbox(BY_PRCTL);
    if (!strcmp(word, "filter"))
        return sandbox(BY_SECCOMP);
    if (!strcmp(word, "threads"))
        return sandbox(FOR_ALL_THREADS);
    if (!strcmp(word, "parts"))
        return parts();
    if (!strcmp(word, "errno"))
        return keeps_errno();
    if (!strcmp(word, "align"))
        return align();
    if (!strcmp(word, "little"))
        return little();
    return fail("usage: does_as_the_c_library WORD");
}
