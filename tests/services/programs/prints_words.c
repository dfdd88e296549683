// Prints its argument vector, each word between brackets.
// expect: exit 0
#include <stdio.h>

int main(int count, char **words) {
    for (int word = 0; word < count; word++) printf("[%s]", words[word]);
    puts("");
    return 0;
}
