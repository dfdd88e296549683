// The program's file is overwritten while the program is lifted: a restore keeps the program's contents, not the
// file's.
//
// link: shared
// needs: thp
#include "support.h"

int main(void)
{
    char self[4096] = { 0 }, other[4200];
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_THP;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    CHECK(pagelift_lift(&options, NULL) == PAGELIFT_OK);
    snprintf(other, sizeof other, "%s.new", self);
    FILE *file = fopen(other, "w");
    CHECK(file);
    for (int index = 0; index < 40 << 20; index++) putc(0xcc, file);
    fclose(file);
    CHECK(rename(other, self) == 0);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) == 0);
    check_all();
    CHECK(pagelift_query(NULL) == PAGELIFT_OK);
    puts("ok");
    return 0;
}
