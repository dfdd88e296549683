// Headers of the standard library with much to compile, each used in a line.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>

int main() {
    std::map<std::string, std::vector<int>> table{{"one", {3, 1, 2}}, {"two", {5, 4}}};
    std::function<int(int)> twice = [](int number) { return 2 * number; };
    std::regex pattern("[a-z]+([0-9]*)");
    for (auto &[name, numbers] : table) {
        std::sort(numbers.begin(), numbers.end());
        std::transform(numbers.begin(), numbers.end(), numbers.begin(), twice);
        std::cout << std::regex_replace(name, pattern, "$1") << numbers.size() << '\n';
    }
}
