# A dict of about 250 MB, and random look-ups in it.
. "$(dirname "$0")/common.sh"
prepare() { :; }
run() { cpu $RUN /usr/bin/python3 -c '
import random
random.seed(1)
count = 1500000
table = {number * 7919: str(number) * 3 for number in range(count)}
total = 0
for _ in range(500000):
    total += len(table[random.randrange(count) * 7919])
print(total)'; }
"$1"
