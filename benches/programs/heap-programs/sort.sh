# sort of a million lines in memory.
. "$(dirname "$0")/common.sh"
prepare() { /usr/bin/python3 -c '
import random
random.seed(1)
for _ in range(1000000):
    print("%024x" % random.getrandbits(96))' >lines; }
run() { LC_ALL=C cpu $RUN sort -S 2G --parallel=1 lines | sha256sum; }
"$1"
