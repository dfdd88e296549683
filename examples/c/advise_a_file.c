/* A program that maps a file and puts it on huge pages: pagelift_advise.
 *
 *     cc advise_a_file.c $(pkg-config --cflags --libs pagelift) -o advise_a_file
 *     ./advise_a_file DATA
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pagelift.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int count, char **arguments)
{
    struct stat status;
    int file = count == 2 ? open(arguments[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &status) != 0) {
        fprintf(stderr, "needed: a file that can be read\n");
        return 2;
    }
    size_t length = (size_t)status.st_size;
    /* Linux places a large mapping so that its address agrees with its offset. Otherwise the message names the disagreement. */
    const unsigned char *data = mmap(NULL, length, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int result = pagelift_advise((void *)data, length, &report);
    /* The mapping shows the file after any result. */
    printf("%s: %s\n", pagelift_error_text(result), report.message);
    unsigned long sum = 0;
    for (size_t at = 0; at < length; at++) sum += data[at];
    printf("sum %lu\n", sum);
    return 0;
}
