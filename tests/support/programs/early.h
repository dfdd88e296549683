/* Code that runs before the program's entry point. Constructors of an executable run after it, called by libc's start;
 * what the dynamic linker calls before is the executable's preinit array, with the arguments of main. */
#ifndef EARLY_H
#define EARLY_H
#define BEFORE_ENTRY(function)                                                                              \
    __attribute__((section(".preinit_array"), used)) static void (*const before_entry)(int, char **, char **) = \
        (void (*)(int, char **, char **))(void *)(function)
#endif
