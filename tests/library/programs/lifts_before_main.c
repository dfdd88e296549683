// A constructor lifts the program, with its functions bound lazily and at once; everything works afterwards.
//
// link: shared archive static musl musl-static
// flags: -Wl,-z,lazy | -Wl,-z,now
// needs: pool 64M
#include "support.h"

static int result = -100;
__attribute__((constructor(101))) static void early(void)
{
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    result = pagelift_lift(&options, NULL);
}

int main(void)
{
    CHECK(result == PAGELIFT_OK);
    size_t pool;
    huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, &pool);
    CHECK(pool >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    check_all();
    check_data(0);
    char *text = NULL;
    CHECK(asprintf(&text, "%s %.3f", strerror(ENOENT), 1.5) > 0 && strstr(text, "1.500"));
    free(text);
    puts("ok");
    return 0;
}
