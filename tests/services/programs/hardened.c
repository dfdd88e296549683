// A service with megabytes of code that notifies systemd by sd_notify(3) when it is ready, with its argument as its
// status.
// expect: it runs until it is ended; SIGHUP changes nothing
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

__attribute__((noinline)) static int much_code(int number) {
    if (number > 1000000) return 0;
    __asm__ volatile(".skip 9000000, 0x90");
    return number;
}

int main(int count, char **words) {
    if (count != 2 || strcmp(words[0], "by another name") != 0 || much_code(1) != 1) return 2;
    signal(SIGHUP, SIG_IGN);
    const char *path = getenv("NOTIFY_SOCKET");
    if (!path) return 3;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + strlen(path);
    if (address.sun_path[0] == '@') address.sun_path[0] = 0;
    char message[256];
    int length = snprintf(message, sizeof message, "READY=1\nSTATUS=%s", words[1]);
    int socket_of_systemd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sendto(socket_of_systemd, message, length, 0, (struct sockaddr *)&address, size) != length) return 4;
    for (;;) pause();
}
