# Sourced by the programs' scripts. Each is called with `prepare` once and with `run` for each measurement, in a folder
# of its own. $RUN holds the words before the program that is measured and may be empty. What a script prints is its
# result, which must be the same each time; the CPU seconds of the program measured go to the file `cpu`, line by line.

# Runs a command and notes the CPU time that it and all that it waited for took.
cpu() {
    local TIMEFORMAT='%U %S'
    { time "$@" 2>&4; } 4>&2 2>>cpu
}

# CPU seconds of a running process.
seconds_of() {
    awk -v tick="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / tick }' "/proc/$1/stat"
}

# Text that looks like words, always the same: so many words.
text() {
    /usr/bin/python3 -c '
import random, sys
random.seed(1)
words = ["".join(random.choices("etaoinshrdlu", k=random.randint(2, 9))) for _ in range(20000)]
for _ in range(int(sys.argv[1]) // 1000):
    print(" ".join(random.choices(words, k=1000)))' "$1"
}
