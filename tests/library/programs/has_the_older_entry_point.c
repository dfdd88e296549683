// The entry point of the older technique returns the number of huge pages, also if an earlier call has made them, and
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
    // If the linker has left the file in huge folios, the code stays on these.
    size_t file = bytes_of("FilePmdMapped", big_code, (size_t)FUNCTIONS * STRIDE);
    CHECK(pool + file >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    huge_bytes(big_data, sizeof big_data, &pool);
    CHECK(pool >= whole_pages(big_data, sizeof big_data));
    CHECK(pages >= 10);
    for (int call = 0; call < 2; call++) {
        size_t again = remap_text_and_data_to_huge_pages(fail_with);
        if (again != pages) fail("%zu pages, then %zu", pages, again);
    }
    // Restored pages do not count, pages that are lifted again do.
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK && remap_text_and_data_to_huge_pages(NULL) == pages);
    puts("ok");
    return 0;
}
