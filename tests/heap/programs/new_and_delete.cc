// C++ allocation: new and delete of all sizes, aligned, nothrow and for arrays; a request that is too large throws, or
// returns null; containers and threads pass blocks to each other.
//
// build: g++ -std=c++17 -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#define CHECK(what)                                                                                                      \
    do {                                                                                                                 \
        if (!(what)) {                                                                                                   \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                           \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

template <std::size_t ALIGN> struct alignas(ALIGN) Aligned {
    char bytes[3 * ALIGN];
};

template <std::size_t ALIGN> static void aligned() {
    for (int i = 0; i < 20; i++) {
        std::unique_ptr<Aligned<ALIGN>> one(new Aligned<ALIGN>), other(new (std::nothrow) Aligned<ALIGN>);
        std::unique_ptr<Aligned<ALIGN>[]> several(new Aligned<ALIGN>[3]);
        CHECK(reinterpret_cast<std::uintptr_t>(one.get()) % ALIGN == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(other.get()) % ALIGN == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(several.get()) % ALIGN == 0);
        memset(one->bytes, i, sizeof one->bytes);
        memset(several.get(), ~i, 3 * sizeof(Aligned<ALIGN>));
        CHECK(one->bytes[3 * ALIGN - 1] == i);
    }
}

int main() {
    for (std::size_t size = 0; size < (40u << 20); size = size * 3 / 2 + 1) {
        char *block = new char[size], *other = new (std::nothrow) char[size + 1];
        CHECK(block && other && block != other);
        memset(block, 1, size);
        memset(other, 2, size + 1);
        CHECK(size == 0 || (block[0] == 1 && block[size - 1] == 1));
        ::operator delete[](block, size);
        delete[] other;
    }
    aligned<64>();
    aligned<4096>();
    aligned<65536>();
    aligned<131072>();
    aligned<2097152>();

    volatile std::size_t much = PTRDIFF_MAX - 100;
    CHECK(::operator new(much, std::nothrow) == nullptr);
    CHECK(::operator new(much, std::align_val_t(64), std::nothrow) == nullptr);
    bool thrown = false;
    try {
        ::operator delete(::operator new(much));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);
    delete static_cast<int *>(nullptr);

    std::vector<std::unique_ptr<std::string>> strings(10000);
    std::vector<std::thread> threads;
    for (int part = 0; part < 4; part++)
        threads.emplace_back([&strings, part] {
            std::map<int, std::string> own;
            for (std::size_t i = part; i < strings.size(); i += 4)
                strings[i] = std::make_unique<std::string>(i % 500, 'a' + part), own[i % 700] = *strings[i];
        });
    for (auto &thread : threads)
        thread.join();
    for (std::size_t i = 0; i < strings.size(); i++) {
        CHECK(*strings[i] == std::string(i % 500, 'a' + i % 4));
        strings[i].reset();
    }
    puts("all is well");
}
