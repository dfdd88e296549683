// A C++ program that lifts itself before main, prints the result, and restores everything at its end.

#include <pagelift.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <numeric>

namespace {

// Memory to lift: 8 MiB of tables.
std::uint64_t table[1024 * 1024] = {1};

// Lifts the program during its own lifetime.
class Lifted {
public:
    Lifted() : report_ PAGELIFT_REPORT_EMPTY
    {
        pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
        options.objects = "exe";
        result_ = pagelift_lift(&options, &report_);
    }
    ~Lifted() { pagelift_restore(nullptr, nullptr); }
    Lifted(const Lifted &) = delete;
    Lifted &operator=(const Lifted &) = delete;

    const char *message() const { return result_ < 0 ? pagelift_error_text(result_) : report_.message; }
    unsigned long long pages() const { return report_.huge_pages; }

private:
    int result_ = PAGELIFT_OK;
    pagelift_report report_;
};

const Lifted lifted;

} // namespace

int main()
{
    std::iota(std::begin(table), std::end(table), 0);
    std::printf("%s\n%llu huge pages, table[12345] = %llu\n", lifted.message(), lifted.pages(),
                static_cast<unsigned long long>(table[12345]));
}
