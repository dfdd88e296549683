// Sets an access control list (acl(5)) of a file or folder that denies one user everything; all others have the rights
// of the mode for others.
//
// Arguments: the path, the user's number.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

// linux/posix_acl_xattr.h; little-endian.
struct entry {
    uint16_t tag, permissions;
    uint32_t id;
};
enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, MASK = 0x10, OTHER = 0x20, NOBODY = -1 };

int main(int count, char **arguments) {
    if (count != 3) return 2;
    struct {
        uint32_t version;
        struct entry entries[5];
    } list = {2,
              {{USER_OBJ, 7, NOBODY},
               {USER, 0, atoi(arguments[2])},
               {GROUP_OBJ, 5, NOBODY},
               {MASK, 5, NOBODY},
               {OTHER, 5, NOBODY}}};
    if (setxattr(arguments[1], "system.posix_acl_access", &list, sizeof list, 0) != 0) {
        printf("setxattr: %s\n", strerror(errno));
        return 1;
    }
    return 0;
}
