// Enough C++ for a compiler to work on for a second or two.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

using Value = std::variant<long, double, std::string, std::vector<int>>;

template <int N> struct Sum {
    static constexpr long value = N + Sum<N - 1>::value;
};
template <> struct Sum<0> {
    static constexpr long value = 0;
};

std::map<std::string, Value> values(const std::string &text) {
    std::map<std::string, Value> found;
    std::regex pattern("([a-z]+)=([0-9]+)");
    for (std::sregex_iterator i(text.begin(), text.end(), pattern), end; i != end; ++i) found[(*i)[1]] = std::stol((*i)[2]);
    return found;
}

int main() {
    std::mt19937_64 random(7);
    std::vector<std::string> words(1000);
    for (auto &word : words) word = std::to_string(random());
    std::sort(words.begin(), words.end(), std::greater<>());
    std::unordered_map<std::string, std::unique_ptr<std::vector<long>>> table;
    for (const auto &word : words) {
        auto &entry = table[word.substr(0, 3)];
        if (!entry) entry = std::make_unique<std::vector<long>>();
        entry->push_back(std::accumulate(word.begin(), word.end(), 0L));
    }
    std::ostringstream out;
    for (const auto &[key, value] : values("a=1 b=22 c=333"))
        out << key << std::visit([](const auto &v) -> long { return sizeof v; }, value);
    std::cout << out.str() << table.size() << Sum<300>::value << '\n';
}
