// The library under valgrind: lift, use, restore, without an error.
//
// link: shared archive
// under: valgrind -q --error-exitcode=9 --leak-check=full
// needs: thp
// needs: command valgrind
#include "address_sanitizer.c"
