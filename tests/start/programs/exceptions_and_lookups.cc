// C++ exceptions unwound through lifted code, backtrace(3), dladdr(3), dlopen(3) and dl_iterate_phdr(3): everything that
// reads tables in the executable or asks the dynamic linker where it lies.
//
// needs: pool 64M
// build: g++ -g -O1 -fPIE -pie -rdynamic -o $OUT $SRC -ldl
// expect: lifted text rodata data bss
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <stdexcept>
#include <string>
#include <vector>
extern "C" {
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 7000000
#include "ranges.h"
#include "ready.h"
}

struct Guard {
    explicit Guard(std::string name) : name(std::move(name)) {}
    ~Guard() { std::printf("left %s\n", name.c_str()); }
    std::string name;
};

extern "C" __attribute__((noinline)) void deep(int depth) {
    Guard guard("depth " + std::to_string(depth));
    if (depth == 0) throw std::runtime_error("thrown at the bottom");
    deep(depth - 1);
}

extern "C" __attribute__((noinline)) int named_function() {
    void *frames[16];
    int count = backtrace(frames, 16), named = 0;
    char **names = backtrace_symbols(frames, count);
    for (int i = 0; i < count; i++) named += std::string(names[i]).find("named_function") != std::string::npos;
    std::free(names);
    return named;
}

static int own_extent(dl_phdr_info *info, size_t, void *found) {
    auto inside = reinterpret_cast<uintptr_t>(&own_extent);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        auto &header = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_LOAD && start <= inside && inside < start + header.p_memsz) *static_cast<int *>(found) += 1;
    }
    return 0;
}

static void all() {
    try {
        deep(3);
    } catch (const std::exception &error) {
        std::printf("caught: %s\n", error.what());
    }
    Dl_info info;
    int known = dladdr(reinterpret_cast<void *>(&named_function), &info);
    std::printf("dladdr: %d %s\n", known, info.dli_sname);
    std::printf("backtrace names it %d times\n", named_function());
    void *self = dlopen(nullptr, RTLD_NOW);
    std::printf("dlsym: %d\n", dlsym(self, "named_function") == reinterpret_cast<void *>(&named_function));
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    auto cosine = reinterpret_cast<double (*)(double)>(dlsym(library, "cos"));
    std::printf("cos 0 = %g\n", cosine(0));
    dlclose(library);
    int found = 0;
    dl_iterate_phdr(own_extent, &found);
    std::printf("this code lies in %d segment\n", found);
    check_ranges(0);
}

int main() {
    fill_bss();
    all();
    ready();
    all();
}
