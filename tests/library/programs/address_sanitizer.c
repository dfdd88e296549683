// The library under the address sanitizer: lift, use, restore.
//
// link: shared
// flags: -fsanitize=address,undefined
// needs: thp
#include "support.h"

int main(void)
{
    char *block = malloc(1000);
    memset(block, 3, 1000);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "exe";
    CHECK(pagelift_lift(&options, NULL) >= 0);
    check_all();
    check_data(0);
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    check_all();
    CHECK(block[999] == 3);
    free(block);
    puts("ok");
    return 0;
}
