// A restore gives the original file mappings: the same names, offsets and protections in maps as before, clean code,
// and the program's changes in data. Everything is lifted, writable memory from the pool.
//
// link: shared archive musl
// needs: pool 64M
#include "support.h"

// The mappings of this program's file and bss, with neighbours of one kind joined.
static char *own_maps(void)
{
    static char all[2][65536];
    static int turn;
    char line[4096], path[4096], self[4096] = { 0 }, *text = all[turn ^= 1];
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long from, to, offset, last = 0, last_offset = 0;
    char protection[8], last_protection[8] = "";
    size_t used = 0;
    text[0] = 0;
    while (fgets(line, sizeof line, maps)) {
        path[0] = 0;
        CHECK(sscanf(line, "%lx-%lx %7s %lx %*s %*s %4095[^\n]", &from, &to, protection, &offset, path) >= 4);
        int own = !strcmp(path, self);
        if (!own) continue;
        if (last == from && last_offset == offset && !strcmp(protection, last_protection))
            used -= 20;
        else
            used += sprintf(text + used, "%012lx %s %lx ", from, protection, offset);
        used += sprintf(text + used, "to %-16lx\n", to);
        last = to, last_offset = offset + (to - from);
        strcpy(last_protection, protection);
    }
    fclose(maps);
    return text;
}

int main(void)
{
    memset(big_bss, 3, BSS_BYTES);
    for (int index = 0; index < WORDS; index++) big_data[index] += 9;
    char *before = own_maps();
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.writable_pages = PAGELIFT_WRITABLE_HUGETLB;
    long pool = free_pool_pages();
    for (int round = 0; round < 3; round++) {
        pagelift_report report = PAGELIFT_REPORT_EMPTY;
        CHECK(pagelift_lift(&options, &report) >= 0 && report.hugetlb_bytes >= 20 << 20);
        for (int index = 0; index < WORDS; index++) big_data[index] += 1;
        big_bss[round] = 4;
        CHECK(pagelift_restore(NULL, &report) == PAGELIFT_OK);
        CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) == 0);
        CHECK(free_pool_pages() == pool);
        char *after = own_maps();
        if (strcmp(before, after)) fail("before\n%safter\n%s", before, after);
        before = after;
        check_all();
        check_data(10 + round);
        for (int index = 0; index < BSS_BYTES; index++) CHECK(big_bss[index] == (index <= round ? 4 : 3));
    }
    puts("ok");
    return 0;
}
