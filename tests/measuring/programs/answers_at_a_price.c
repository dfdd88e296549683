// A server that answers each request of RESP with +OK. Its arguments:
//
//   1  the port
//   2  CPU time for each request, in microseconds; the server uses exactly this time
//   3  percent by which each request takes longer
//   4  percent by which each request takes longer after SIGUSR1; SIGUSR2 ends this
//   5  blocks of 256 KiB that it allocates and frees for each request
//
// The request `QUIT` ends the server without an answer, `FAIL` is answered by an error.
//
// build: gcc -g -O1 -pthread -o $OUT $SRC
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double price, dearer;
static volatile sig_atomic_t is_dear;
static int blocks;

static void change(int number) { is_dear = number == SIGUSR1; }

// As in other servers, most of a request's time is spent in the program, not in the kernel (to read the clock).
static void compute_a_little(void) {
    for (volatile int step = 0; step < 1000; step++) {}
}

static double used(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// The length of the first request in a text, 0 if it is incomplete: `*2`, and two lines for each word.
static size_t first_request(const char *text, size_t length) {
    if (length < 4 || text[0] != '*') return 0;
    long lines = 1 + 2 * atol(text + 1);
    for (const char *at = text; at < text + length; at++)
        if (*at == '\n' && --lines == 0) return (size_t)(at + 1 - text);
    return 0;
}

static int names(const char *text, size_t length, const char *word) { return memmem(text, length, word, strlen(word)) != NULL; }

static void grow_and_shrink(void) {
    enum { MOST = 256, BYTES = 256 << 10 };
    char *held[MOST];
    int taken = blocks < MOST ? blocks : MOST;
    for (int index = 0; index < taken; index++) {
        held[index] = malloc(BYTES);
        if (!held[index]) abort();
        for (int at = 0; at < BYTES; at += BYTES / 4) held[index][at] = 1;
    }
    while (taken-- > 0) free(held[taken]);
}

static void *answer(void *argument) {
    int connection = (int)(long)argument;
    char text[1 << 16];
    size_t length = 0;
    double until = used();
    for (;;) {
        ssize_t more = read(connection, text + length, sizeof text - 1 - length);
        if (more <= 0) break;
        length += (size_t)more;
        text[length] = 0;
        for (size_t first; (first = first_request(text, length)); length -= first, memmove(text, text + first, length + 1)) {
            if (names(text, first, "QUIT")) exit(7);
            const char *said = names(text, first, "FAIL") ? "-ERR told to fail\r\n" : "+OK\r\n";
            grow_and_shrink();
            // If a request took longer than its price, the next request takes less by the difference.
            until += is_dear ? dearer : price;
            while (used() < until) compute_a_little();
            if (write(connection, said, strlen(said)) < 0) return NULL;
        }
    }
    close(connection);
    return NULL;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    price = atof(words[2]) * 1e-6 * (1 + atof(words[3]) / 100);
    dearer = price * (1 + (count > 4 ? atof(words[4]) : 0) / 100);
    blocks = count > 5 ? atoi(words[5]) : 0;
    struct sigaction change_price = {.sa_handler = change, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &change_price, NULL);
    sigaction(SIGUSR2, &change_price, NULL);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 64)) return 3;
    printf("listening on %s\n", words[1]);
    fflush(stdout);
    for (;;) {
        int connection = accept(server, NULL, NULL);
        pthread_t thread;
        if (connection < 0 || pthread_create(&thread, NULL, answer, (void *)(long)connection)) return 4;
        pthread_detach(thread);
    }
}
