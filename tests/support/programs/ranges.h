/* Code, read-only data, data and bss of any size, filled with patterns that can be checked, for programs that are to be
 * lifted. Sizes are given before the inclusion: CODE_PAGES (of 4096 bytes, at most 65536), RODATA_BYTES, DATA_BYTES,
 * BSS_BYTES. A size that is not given leaves its range out. */
#ifndef RANGES_H
#define RANGES_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define ODD 0x9e3779b97f4a7c15ull

#ifdef CODE_PAGES
#if defined(__x86_64__)
#define ONE_FUNCTION "lea (%rdi,%rdi,2), %rax\n add $code_index, %rax\n ret\n"
#elif defined(__aarch64__)
#define ONE_FUNCTION "movz x1, #code_index\n add x0, x0, x0, lsl #1\n add x0, x0, x1\n ret\n"
#elif defined(__i386__)
#define ONE_FUNCTION "mov 4(%esp), %eax\n lea (%eax,%eax,2), %eax\n add $code_index, %eax\n ret\n"
#endif
/* One function at the start of each page: function i returns 3 x + i. */
__asm__(".text\n .balign 4096\n .globl scattered_code\n .hidden scattered_code\n scattered_code:\n .set code_index, 0\n"
        ".rept " TEXT_OF(CODE_PAGES) "\n .balign 4096\n" ONE_FUNCTION " .set code_index, code_index + 1\n .endr\n"
        ".balign 4096\n .text\n");
extern char scattered_code[] __attribute__((visibility("hidden")));

static uint64_t run_code(void) {
    uint64_t sum = 0;
    for (uintptr_t i = 0; i < CODE_PAGES; i++) {
        uintptr_t (*function)(uintptr_t) = (uintptr_t(*)(uintptr_t))(void *)(scattered_code + 4096 * i);
        uintptr_t result = function(i + 7);
        if (result != 3 * (i + 7) + i) printf("function %lu returned %lu\n", (unsigned long)i, (unsigned long)result);
        sum += result;
    }
    return sum;
}
#endif

/* Quadword i holds (i + 1) * ODD. Eight in a line, with these multiples of ODD, are assembled four times as fast as one. */
#define EIGHT_QUADS                                                                  \
    ".quad pattern_value, pattern_value + 0x9e3779b97f4a7c15, pattern_value + 0x3c6ef372fe94f82a\n" \
    ".quad pattern_value + 0xdaa66d2c7ddf743f, pattern_value + 0x78dde6e5fd29f054\n"                \
    ".quad pattern_value + 0x1715609f7c746c69, pattern_value + 0xb54cda58fbbee87e\n"                \
    ".quad pattern_value + 0x538454127b096493\n .set pattern_value, pattern_value + 0xf1bbcdcbfa53e0a8\n"
#define PATTERN(section, name, bytes)                                                                    \
    __asm__(".pushsection " section "\n .balign 64\n .globl " name "\n .hidden " name "\n" name ":\n"    \
            ".set pattern_value, 0x9e3779b97f4a7c15\n .rept (" TEXT_OF(bytes) ") / 64\n" EIGHT_QUADS ".endr\n"  \
            ".rept ((" TEXT_OF(bytes) ") / 8) & 7\n .quad pattern_value\n"                              \
            ".set pattern_value, pattern_value + 0x9e3779b97f4a7c15\n .endr\n .popsection\n");

static inline void check_pattern(const char *name, const volatile uint64_t *words, uint64_t bytes, uint64_t plus) {
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (words[i] != (i + 1) * ODD + plus) {
            printf("%s differs at word %lu: %lx\n", name, (unsigned long)i, (unsigned long)words[i]);
            return;
        }
    printf("%s is right\n", name);
}

static inline void add_to_pattern(volatile uint64_t *words, uint64_t bytes, uint64_t plus) {
    for (uint64_t i = 0; i < bytes / 8; i++) words[i] += plus;
}

#ifdef RODATA_BYTES
PATTERN(".rodata", "large_rodata", RODATA_BYTES)
extern const uint64_t large_rodata[] __attribute__((visibility("hidden")));
#endif
#ifdef DATA_BYTES
PATTERN(".data", "large_data", DATA_BYTES)
extern uint64_t large_data[] __attribute__((visibility("hidden")));
#endif
#ifdef BSS_BYTES
static uint64_t large_bss[BSS_BYTES / 8];
#endif

/* The state of all ranges; `plus` is what has been added to the writable ones since the start. */
static void check_ranges(uint64_t plus) {
    (void)plus;
#ifdef CODE_PAGES
    printf("code sums to %lu\n", (unsigned long)run_code());
#endif
#ifdef RODATA_BYTES
    check_pattern("rodata", large_rodata, RODATA_BYTES, 0);
#endif
#ifdef DATA_BYTES
    check_pattern("data", large_data, DATA_BYTES, plus);
#endif
#ifdef BSS_BYTES
    check_pattern("bss", large_bss, BSS_BYTES, plus);
#endif
    fflush(stdout);
}

/* Bss as it is at the start, zero, is turned into the same pattern as data. */
static void fill_bss(void) {
#ifdef BSS_BYTES
    for (uint64_t i = 0; i < BSS_BYTES / 8; i++) {
        if (large_bss[i] != 0) printf("bss is not zero at the start, word %lu\n", (unsigned long)i);
        large_bss[i] = (i + 1) * ODD;
    }
#endif
}

static void add_to_ranges(uint64_t plus) {
    (void)plus;
#ifdef DATA_BYTES
    add_to_pattern(large_data, DATA_BYTES, plus);
#endif
#ifdef BSS_BYTES
    add_to_pattern(large_bss, BSS_BYTES, plus);
#endif
}
#endif
