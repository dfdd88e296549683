// A prefork server: a parent forks 50 workers. Each answers a few requests, writes to all its memory and ends; then the
// parent forks another. Data and bss are on pool pages by preload, and the pool is empty. In the second set the parent
// also has a thread for statistics. No worker dies, each sees exactly the parent's memory at its fork, and no client is
// refused.
//
// link: preload
// flags: -DFORKS=600 | -DFORKS=600 -DKEEPS_STATISTICS
// env: PAGELIFT=only=prefork_server pages=hugetlb writable-pages=hugetlb quiet
// needs: pool 64M
#include "fork.h"
#include <sys/socket.h>
#include <sys/un.h>

#define WORKERS 50
#define REQUESTS 3
#define CLIENTS 4
#define PAGES (BSS_BYTES / 4096)

static int listening;
static struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "socket" };
static volatile int stop;

__attribute__((unused)) static void *keep_statistics(void *argument)
{
    (void)argument;
    // Two counters on two pages: they are equal, or the first is one ahead.
    uint64_t *first = (uint64_t *)(big_bss + 1024), *second = (uint64_t *)(big_bss + BSS_BYTES / 2 + 1024);
    while (!stop) {
        __atomic_fetch_add(first, 1, __ATOMIC_RELEASE);
        __atomic_fetch_add(second, 1, __ATOMIC_RELEASE);
        usleep(50);
    }
    return NULL;
}

static void set_generation(uint32_t generation)
{
    for (int page = 0; page < PAGES; page++) memcpy(big_bss + page * 4096, &generation, sizeof generation);
    big_data[5] = generation;
}

static int is_generation(uint32_t generation)
{
    for (int page = 0; page < PAGES; page++) {
        uint32_t found;
        memcpy(&found, big_bss + page * 4096, sizeof found);
        if (found != generation) return 0;
    }
    uint64_t first = *(uint64_t *)(big_bss + 1024), second = *(uint64_t *)(big_bss + BSS_BYTES / 2 + 1024);
    return big_data[5] == generation && (first == second || first == second + 1);
}

__attribute__((noreturn)) static void work(uint32_t generation)
{
    if (!is_generation(generation)) _exit(1);
    for (int request = 0; request < REQUESTS; request++) {
        int client = accept(listening, NULL, NULL);
        char asked[64];
        if (client < 0 || read(client, asked, sizeof asked) != 6) _exit(2);
        // The parent's later writes must not be visible here.
        if (!is_generation(generation)) _exit(3);
        if (write(client, &generation, sizeof generation) != sizeof generation) _exit(4);
        close(client);
    }
    if (generation % 8 == 0) {
        pid_t child = fork();
        if (!child) _exit(is_generation(generation) ? 5 : 6);
        set_generation(0);
        int status;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5) _exit(7);
    }
    set_generation(~generation);
    _exit(is_generation(~generation) ? 0 : 8);
}

static void *ask(void *argument)
{
    (void)argument;
    intptr_t answers = 0;
    for (;;) {
        int server = socket(AF_UNIX, SOCK_STREAM, 0);
        // When the server has closed its socket, clients get a refusal or no answer. The client counts its answers.
        if (connect(server, (struct sockaddr *)&address, sizeof address)) return (void *)answers;
        uint32_t generation = 0;
        if (write(server, "please", 6) != 6 || read(server, &generation, sizeof generation) != sizeof generation)
            return (void *)answers;
        close(server);
        answers++;
    }
}

// Clients run in another process, so that the server has one thread.
static pid_t start_clients(int report)
{
    pid_t pid = fork();
    if (pid) return pid;
    signal(SIGPIPE, SIG_IGN);
    close(listening);
    pthread_t threads[CLIENTS];
    for (int index = 0; index < CLIENTS; index++) pthread_create(&threads[index], NULL, ask, NULL);
    intptr_t total = 0;
    for (int index = 0; index < CLIENTS; index++) {
        void *answers;
        pthread_join(threads[index], &answers);
        total += (intptr_t)answers;
    }
    CHECK(write(report, &total, sizeof total) == sizeof total);
    _exit(0);
}

int main(void)
{
    size_t before, after;
    huge_bytes(big_bss, BSS_BYTES, &before);
    CHECK(before >= whole_pages(big_bss, BSS_BYTES) && before >= 4 << 20);
    exhaust_pool();
    unlink(address.sun_path);
    listening = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&address, sizeof address) == 0 && listen(listening, 100) == 0);
    int report[2];
    CHECK(pipe(report) == 0);
    pid_t clients = start_clients(report[1]);
    close(report[1]);
#ifdef KEEPS_STATISTICS
    pthread_t keeper;
    pthread_create(&keeper, NULL, keep_statistics, NULL);
#endif
    double start = seconds(), forking = 0;
    int forks = 0, running = 0;
    for (uint32_t generation = 1; forks < FORKS || running;) {
        if (forks < FORKS && running < WORKERS) {
            set_generation(generation);
            double one = seconds();
            pid_t worker = fork();
            if (!worker) work(generation);
            CHECK(worker > 0);
            forking += seconds() - one;
            // The parent continues to write at once.
            set_generation(++generation);
            forks++, running++;
            continue;
        }
        int status;
        pid_t ended = wait(&status);
        if (ended == clients || !WIFEXITED(status) || WEXITSTATUS(status))
            fail("%s ended with status %x after %d forks", ended == clients ? "the clients" : "a worker", status, forks);
        running--;
    }
    stop = 1;
    double took = seconds() - start;
    close(listening);
    int status;
    CHECK(waitpid(clients, &status, 0) == clients);
    intptr_t answers = 0;
    CHECK(read(report[0], &answers, sizeof answers) == sizeof answers && answers == (intptr_t)FORKS * REQUESTS);
#ifdef KEEPS_STATISTICS
    pthread_join(keeper, NULL);
#endif
    huge_bytes(big_bss, BSS_BYTES, &after);
    CHECK(before == after);
    printf("%d forks in %.0f s, %.2f ms each; %ld requests answered\n", forks, took, forking / forks * 1e3, answers);
    puts("ok");
    return 0;
}
