// The entry point of the older technique, called in a program that the variable has lifted before main, returns the
// number of huge pages of its code and data, and prints nothing.
//
// link: shared
// env: PAGELIFT=only=older_entry_point_of_a_lifted_program pages=hugetlb writable-pages=hugetlb quiet
// needs: pool 64M
#include "support.h"

static void fail_with(const char *line) { fail("%s", line); }

int main(void)
{
    size_t whole = whole_pages(big_code, (size_t)FUNCTIONS * STRIDE) + whole_pages(big_data, sizeof big_data), code, data;
    huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, &code);
    huge_bytes(big_data, sizeof big_data, &data);
    CHECK(code + data >= whole);
    size_t pages = remap_text_and_data_to_huge_pages(fail_with);
    if (pages < whole / huge_page() || pages > 16) fail("%zu pages, %zu expected", pages, whole / huge_page());
    check_all();
    check_data(0);
    puts("ok");
    return 0;
}
