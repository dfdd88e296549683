/* What a hostile program knows of the page in which it finds the calls that it is to make while it is lifted. */
#ifndef CALL_PAGE_H
#define CALL_PAGE_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CALL_NUMBER = 4, CALL_ARGUMENTS = 5 };
#define NO_CALL UINT64_MAX
#define OF_NO_LIFT 0x1234

/* Marks the lowest page of the stack as one that an earlier lift has used, so that it is used again. */
static volatile uint64_t *plant_call_page(void) {
    unsigned long start = 0, end;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &start, &end) == 2) break;
    if (maps) fclose(maps);
    volatile uint64_t *page = (volatile uint64_t *)start;
    memcpy((void *)(uintptr_t)start, "pageliftcallpage", 16);
    page[CALL_NUMBER] = NO_CALL;
    page[CALL_ARGUMENTS] = OF_NO_LIFT;
    return page;
}

static inline int is_installed(volatile uint64_t *page) { return page[CALL_ARGUMENTS] != OF_NO_LIFT; }

/* Puts another call in place of the one that stands there, if one does; true where it has. */
static inline int replace_call(volatile uint64_t *page, uint64_t number, const uint64_t *arguments, int count) {
    if (page[CALL_NUMBER] == NO_CALL || page[CALL_NUMBER] == number) return 0;
    for (int i = 0; i < count; i++) page[CALL_ARGUMENTS + i] = arguments[i];
    page[CALL_NUMBER] = number;
    return 1;
}
#endif
