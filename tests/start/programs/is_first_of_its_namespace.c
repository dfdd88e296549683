// The first process of a PID namespace, alone there, looks for children that it has not made.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define CODE_PAGES 1100
#include "ranges.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* True if another process runs. */
static int others_run(void) {
    DIR *folder = opendir("/proc");
    int run = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], text[300] = "";
        if (!isdigit((unsigned char)entry->d_name[0]) || atoi(entry->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        const char *state = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
        fclose(file);
        if (state && !strchr("ZX", state[2])) run = 1;
    }
    if (folder) closedir(folder);
    return run;
}

int main(void) {
    while (others_run()) usleep(1000);
    int status;
    pid_t child = waitpid(-1, &status, WNOHANG);
    printf("%d, %s\n", getpid(), child < 0 && errno == ECHILD ? "no child" : "a child");
    check_ranges(0);
    return 0;
}
