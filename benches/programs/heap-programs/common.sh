# Sourced by the programs' scripts. Each is called with `prepare` once and with `run` for each measurement, in a
# separate folder. $RUN holds the words before the measured program and may be empty. The output of a script is its
# result, which must be the same each time; the CPU seconds of the measured program go to the file `cpu`, one per line.

# Runs a command and records the CPU time of the command and of all children that it waited for.
cpu() {
    local TIMEFORMAT='%U %S'
    { time "$@" 2>&4; } 4>&2 2>>cpu
}

# CPU seconds of a running process.
seconds_of() {
    awk -v tick="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / tick }' "/proc/$1/stat"
}

# Text that resembles words, always the same, with this number of words.
text() {
    /usr/bin/python3 -c '
import random, sys
random.seed(1)
words = ["".join(random.choices("etaoinshrdlu", k=random.randint(2, 9))) for _ in range(20000)]
for _ in range(int(sys.argv[1]) // 1000):
    print(" ".join(random.choices(words, k=1000)))' "$1"
}
