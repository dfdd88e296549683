/* A program that lifts itself at its start and prints the result.
 *
 *     cc lift_yourself.c $(pkg-config --cflags --libs pagelift) -o lift_yourself
 *
 * If the library is not in a folder that the dynamic linker searches, add
 *
 *     -Wl,-rpath,$(pkg-config --variable=libdir pagelift)
 */
#include <pagelift.h>
#include <stdio.h>

static void print_line(const char *line, void *context)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

/* Memory to lift: 8 MiB of tables. */
static unsigned table[2 * 1024 * 1024] = { 1 };

int main(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.objects = "exe";
    options.logger = print_line;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int result = pagelift_lift(&options, &report);
    if (result < 0) {
        /* Nothing has changed; the program runs on ordinary pages. */
        fprintf(stderr, "not lifted: %s\n", pagelift_error_text(result));
    }
    for (unsigned index = 0; index < sizeof table / sizeof *table; index++) table[index] += index;
    printf("%llu huge pages, table[12345] = %u\n", (unsigned long long)report.huge_pages, table[12345]);
    return 0;
}
