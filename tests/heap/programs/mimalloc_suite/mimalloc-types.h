// See mimalloc.h beside this.
#include "mimalloc.h"
