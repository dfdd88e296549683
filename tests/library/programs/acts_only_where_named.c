// The preloaded library acts in the named program, and uses no pool pages in the shell, the wrapper and the other
// programs that inherit the variables.
//
// link: preload
// env: PAGELIFT=only=another_name pages=hugetlb quiet
// needs: pool 64M
#include "support.h"

int main(int count, char **arguments)
{
    size_t pool;
    huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, &pool);
    if (count > 1) {
        CHECK(pool >= whole_pages(big_code, (size_t)FUNCTIONS * STRIDE));
        check_all();
        check_data(0);
        return 0;
    }
    CHECK(pool == 0);
    long free = free_pool_pages();
    CHECK(system("test $(cat /proc/sys/vm/nr_hugepages) -gt 0 && sleep 0 && env true") == 0);
    CHECK(free_pool_pages() == free);
    char self[4096] = { 0 }, command[9000];
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "cp %s another_name && nice env sh -c './another_name lifted; exit $?'", self);
    CHECK(system(command) == 0);
    CHECK(free_pool_pages() == free);
    puts("ok");
    return 0;
}
