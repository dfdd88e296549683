// A shared object of more than two huge pages of code, with a dependency that only its own RUNPATH finds.
#include <stdint.h>
#if defined(__x86_64__)
#define RETURN_I "movl $i, %eax\n ret\n"
#else
#define RETURN_I "mov w0, #i\n ret\n"
#endif
__asm__(".text\n .p2align 12\n .globl plugin_code\n plugin_code:\n .set i, 0\n .rept 1536\n .p2align 12\n" RETURN_I
        ".set i, i + 1\n .endr\n .p2align 12\n");
extern char plugin_code[] __attribute__((visibility("hidden")));
int plugin_counter = 7;
int plugin_call(int index)
{
    plugin_counter++;
    return ((int (*)(void))(plugin_code + (uintptr_t)index * 4096))();
}
void *plugin_start(void) { return plugin_code; }
