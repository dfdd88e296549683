// The pool is empty: the child writes first; the parent writes first and the child reads later; many children at once;
// children of children. The parent keeps its pool pages throughout.
//
// link: shared archive musl
// needs: pool 64M
#include "fork.h"

static void child_writes_first(void)
{
    pid_t child = fork();
    if (!child) {
        size_t pool;
        huge_bytes(big_data, sizeof big_data, &pool);
        if (pool > 0 || !bss_is(1) || !data_is(0)) _exit(1);
        memset(big_bss, 2, BSS_BYTES);
        add_to_data(7);
        _exit(bss_is(2) && data_is(7) ? 5 : 2);
    }
    expect_exit(child, 5);
    CHECK(bss_is(1) && data_is(0));
}

static void parent_writes_first(void)
{
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (!child) {
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(3);
        _exit(bss_is(1) && data_is(0) ? 6 : 4);
    }
    memset(big_bss, 9, BSS_BYTES);
    add_to_data(3);
    CHECK(write(go[1], "", 1) == 1);
    expect_exit(child, 6);
    CHECK(bss_is(9) && data_is(3));
    memset(big_bss, 1, BSS_BYTES);
    add_to_data(-3);
    close(go[0]), close(go[1]);
}

static void many_children(int count)
{
    pid_t children[40];
    for (int index = 0; index < count; index++) {
        children[index] = fork();
        if (!children[index]) {
            int wrong = !bss_is(1) ? 97 : !data_is(index) ? 98 : 0;
            memset(big_bss, index, BSS_BYTES);
            _exit(wrong ? wrong : bss_is(index) ? index : 99);
        }
        CHECK(children[index] > 0);
        add_to_data(1);
    }
    for (int index = 0; index < count; index++) expect_exit(children[index], index);
    add_to_data(-count);
}

__attribute__((noreturn)) static void descend(int generations)
{
    if (generations == 0) _exit(0);
    pid_t child = fork();
    if (!child) {
        if (!data_is(10 - generations)) _exit(1);
        add_to_data(1);
        descend(generations - 1);
    }
    int status;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 90);
}

int main(void)
{
    lift_writable();
    size_t before, after;
    huge_bytes(big_data, sizeof big_data, &before);
    CHECK(before >= 4 << 20);
    int mappings = 0;
    // An emulated machine takes about 20 times as long for each byte.
    int slow = getenv("PAGELIFT_TEST_EMULATED") != NULL;
#ifdef BRIEF
    slow = 1;
#endif
    for (int round = 0; round < (slow ? 2 : 3); round++) {
        child_writes_first();
        parent_writes_first();
        many_children(slow ? 4 : 40);
        pid_t child = fork();
        if (!child) descend(10);
        expect_exit(child, 0);
        huge_bytes(big_data, sizeof big_data, &after);
        CHECK(before == after && bss_is(1) && data_is(0));
        if (round == 0) mappings = count_mappings();
    }
    CHECK(count_mappings() == mappings);
    puts("ok");
    return 0;
}
