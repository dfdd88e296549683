// A huge page of data with the semaphore of a USDT probe keeps its file mapping, in which tracers set the semaphore.
// All other data is lifted.
//
// link: shared archive
// needs: thp
#include "support.h"

/* A semaphore in the middle of the data, declared by a note as in SystemTap's sys/sdt.h. */
__asm__(".pushsection .note.stapsdt,\"?\",\"note\"\n .balign 4\n .4byte 992f-991f, 994f-993f, 3\n"
        "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte main, 0, big_data + 3145728\n"
        " .asciz \"pagelift\"\n .asciz \"place\"\n .asciz \"\"\n994: .balign 4\n .popsection\n");
#define SEMAPHORE (big_data + WORDS / 2)

int main(void)
{
    pagelift_options options;
    pagelift_options_init(&options, sizeof options);
    options.pages = PAGELIFT_PAGES_THP;
    options.objects = "exe";
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    CHECK(pagelift_lift(&options, &report) >= 0);
    CHECK(huge_bytes(SEMAPHORE, sizeof *SEMAPHORE, NULL) == 0);
    size_t data = whole_pages(big_data, sizeof big_data);
    CHECK(data > huge_page() && huge_bytes(big_data, sizeof big_data, NULL) >= data - huge_page());
    check_data(0);
    CHECK(pagelift_restore(NULL, NULL) == PAGELIFT_OK);
    check_all();
    check_data(0);
    puts("ok");
    return 0;
}
