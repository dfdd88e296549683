// The entry point of the older technique returns the number of huge pages, also where an earlier call has made them, and
// works without a logger.
//
// link: shared archive
// needs: pool 64M
#include "support.h"

static void fail_with(const char *line) { fail("%s", line); }

int main(void)
{
    size_t pages = remap_text_and_data_to_huge_pages(NULL), pool;
    check_all();
    check_data(0);
    big_data[77]++;
    big_bss[77]++;
    huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, &pool);
    // Where the linker has left the file in huge folios, its code stays on them.
    size_t file = bytes_of("FilePmdMapped", big_code, (size_t)FUNCTIONS * STRIDE);
    CHECK(pool + file >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    huge_bytes(big_data, sizeof big_data, &pool);
    CHECK(pool >= whole_pages(big_data, sizeof big_data));
    CHECK(pages >= 10);
    for (int call = 0; call < 2; call++) {
        size_t again = remap_text_and_data_to_huge_pages(fail_with);
        if (again != pages) fail("%zu pages, then %zu", pages, again);
    }
    // What is given back does not count, and what is lifted anew does.
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK && remap_text_and_data_to_huge_pages(NULL) == pages);
    puts("ok");
    return 0;
}
