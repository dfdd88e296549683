// Large headers of the standard library, each of which is used.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>

int main() {
    std::map<std::string, std::vector<int>> table{{"a", {3, 1, 2}}};
    for (auto &[name, numbers] : table) {
        std::sort(numbers.begin(), numbers.end(), std::greater<>());
        if (std::regex_match(name, std::regex("[a-z]+"))) std::cout << name << numbers.front() << '\n';
    }
}
