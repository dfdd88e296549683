// As threads_of_a_constructor, with sixty threads, most of which wait for a CPU at any moment.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIC -shared -DLIBRARY -o $BUILD/libbusy.so $SRC -lpthread
// build: gcc -g -O1 -fPIE -pie -rdynamic -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -lbusy -Wl,-rpath,$BUILD -lpthread
// expect: lifted text
// expect: unlifted-object libbusy.so
#define THREADS 60
#include "threads_of_a_constructor.c"
