// Lifts and restores 250 times under load: contents are right at every moment, and at the end there are as many
// mappings and pool pages, and as much resident memory, as after the first time.
//
// link: shared
// needs: pool 64M
#include "support.h"

static volatile int stop;
static void *work(void *argument)
{
    (void)argument;
    while (!stop) {
        check_code(5);
        check_constants(61);
    }
    return NULL;
}

int main(void)
{
    big_data[5] += 1;
    pthread_t threads[2];
    for (int index = 0; index < 2; index++) pthread_create(&threads[index], NULL, work, NULL);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.lift = PAGELIFT_LIFT_TEXT | PAGELIFT_LIFT_RODATA;
    int mappings = 0;
    long resident = 0, pool = free_pool_pages();
    for (int round = 0; round < 250; round++) {
        options.pages = round % 3 == 2 ? PAGELIFT_PAGES_THP : PAGELIFT_PAGES_HUGETLB;
        int result = pagelift_lift(&options, NULL);
        if (result != PAGELIFT_OK) fail("round %d: %s", round, pagelift_error_text(result));
        if (round % 25 == 0) CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) >= 6 << 20);
        CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
        if (round % 25 == 0) CHECK(huge_bytes(big_code, (size_t)FUNCTIONS * STRIDE, NULL) == 0);
        if (round == 4) mappings = count_mappings(), resident = resident_kib();
    }
    stop = 1;
    for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
    check_all();
    if (count_mappings() > mappings) fail("%d mappings after 5 rounds, %d after 250", mappings, count_mappings());
    CHECK(free_pool_pages() == pool);
    if (resident_kib() > resident + 2048) fail("%ld KiB resident, then %ld", resident, resident_kib());
    puts("ok");
    return 0;
}
