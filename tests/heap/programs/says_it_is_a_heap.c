// Not a heap, but a library with an account like that of the preloaded heap. ACCOUNT gives the fields after the first
// as numbers. `self` is the address of the account.
//
// build: gcc -g -O1 -Wall -shared -fPIC -o $OUT $SRC
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

uint64_t pagelift_heap_account[64];

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("ACCOUNT");
    char *words = strdup(given ? given : ""), *rest = words, *word;
    for (int i = 1; i < 64 && (word = strsep(&rest, " ")) != NULL; i++)
        pagelift_heap_account[i] =
            strcmp(word, "self") == 0 ? (uintptr_t)pagelift_heap_account : strtoull(word, NULL, 0);
    free(words);
    memcpy(pagelift_heap_account, "PLHEAPAC", 8);
}
