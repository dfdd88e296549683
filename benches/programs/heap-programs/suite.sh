# Programs of mimalloc-bench, compiled from the checkout at $SUITE. Nothing is downloaded, and nothing is written into
# the checkout. Called with a step, as the other scripts, and a name. Counts of iterations are below the suite's own,
# for runs of about half a second.
. "$(dirname "$0")/common.sh"
bench=$SUITE/bench
threads=$(($(nproc) > 16 ? 16 : $(nproc)))

missing() {
    echo "$*" >&2
    exit 1
}
# Compiles ./program: the language, options, sources below the checkout's folder or here.
compile() {
    local language=$1 compiler
    shift
    case $language in c) compiler=${CC:-cc} ;; c++) compiler=${CXX:-c++} ;; esac
    $compiler -O3 -DNDEBUG -w -pthread -o program "$@" -lm
}
# The C sources of a folder, except those named.
sources_but() {
    local folder=$1 file
    shift
    for file in "$bench/$folder"/*.c; do
        case " $* " in *" $(basename "$file" .c) "*) ;; *) echo "$file" ;; esac
    done
}
# A copy of a source with a number in it replaced: file, expression for sed that must change the file.
changed() {
    local name
    name=$(basename "$1")
    sed "$2" "$1" >"$name"
    ! cmp -s "$1" "$name" || missing "$1 has no place for: $2"
}
# Runs a program that works for a fixed time, and records its CPU time for a fixed number of operations: the number, an
# expression for sed that prints the number of operations from the output, the command.
for_operations() {
    local fixed=$1 expression=$2 count
    shift 2
    : >used
    local TIMEFORMAT='%U %S'
    { time "$@" >output 2>&4; } 4>&2 2>>used
    count=$(sed -n "$expression" output | head -1)
    [ -n "$count" ] || missing "no number of operations in the output: $(head -c 300 output)"
    awk -v fixed="$fixed" -v count="$count" '{ print ($1 + $2) * fixed / count }' used >>cpu
    echo done
}
# Runs a program whose output differs from run to run.
timed() {
    cpu $RUN "$@" >output
    echo done
}

prepare() {
    [ -e "$bench/CMakeLists.txt" ] || missing "$SUITE is no checkout of mimalloc-bench: no bench/CMakeLists.txt"
    case $1 in
    cfrac)
        mapfile -t sources < <(sources_but cfrac getopt ltop pfactor ptob)
        compile c -std=gnu89 -DNOMEMOPT=1 "${sources[@]}"
        ;;
    espresso)
        mapfile -t sources < <(sources_but espresso)
        compile c -std=gnu89 "${sources[@]}"
        head -n 700 "$bench/espresso/largest.espresso" >table.espresso
        ;;
    barnes)
        mapfile -t sources < <(sources_but barnes)
        compile c -std=gnu89 "${sources[@]}"
        changed "$bench/barnes/input" 's/^163840$/30000/'
        ;;
    larson*)
        local sized=
        [ "$1" = larson ] || sized='-DSIZED=1 -fsized-deallocation'
        changed "$bench/larson/larson.cpp" 's/Sleep(2500L)/Sleep(50L)/'
        compile c++ -DCPP=1 $sized larson.cpp
        ;;
    alloc-test-*)
        changed "$bench/alloc-test/allocator_tester.cpp" 's/iterCount = 100000000/iterCount = 8000000/'
        compile c++ -std=c++17 -DBENCH=4 -I"$bench/alloc-test" allocator_tester.cpp "$bench/alloc-test/test_common.cpp"
        ;;
    cache-scratch-* | cache-thrash-*)
        local name=${1%-*}
        compile c++ "$bench/$name/$name.cpp"
        ;;
    xmalloc-test) compile c "$bench/xmalloc-test/xmalloc-test.c" ;;
    malloc-large)
        changed "$bench/malloc-large/malloc-large.cpp" 's/kNumIterations = 2000/kNumIterations = 250/'
        compile c++ -std=c++17 malloc-large.cpp
        ;;
    malloc-large-old)
        # Optimized, it writes nothing.
        changed "$bench/malloc-large/malloc-large-old.cpp" 's/N = 5000/N = 250/'
        compile c++ -std=c++17 -O1 -fno-tree-dse -fno-allocation-dce malloc-large-old.cpp
        ;;
    mleak) compile c "$bench/mleak/mleak.c" ;;
    mstress) compile c "$bench/mstress/mstress.c" ;;
    rptest)
        changed "$bench/rptest/rptest.c" 's/thread_sleep(1000)/thread_sleep(20)/'
        compile c -I"$bench/rptest" rptest.c "$bench"/rptest/{thread,timer}.c
        ;;
    glibc-simple)
        changed "$bench/glibc-bench/bench-malloc-simple.c" 's/NUM_ITERS 2000000/NUM_ITERS 500000/'
        compile c bench-malloc-simple.c
        ;;
    glibc-thread)
        changed "$bench/glibc-bench/bench-malloc-thread.c" 's/BENCHMARK_DURATION\t*.*2$/BENCHMARK_DURATION 1/'
        compile c bench-malloc-thread.c
        ;;
    z3) [ -e "$bench/z3/test1.smt2" ] || missing "no bench/z3/test1.smt2 in the checkout" ;;
    rbstress-*)
        changed "$bench/rbstress/stress_mem.rb" 's/12_000_000/1_500_000/; s/600_000/150_000/'
        ;;
    sh6bench | sh8bench)
        [ -e "$bench/shbench/$1-new.c" ] ||
            missing "no bench/shbench/$1-new.c in the checkout: the suite's build script downloads it"
        compile c -DBENCH=1 -DSYS_MULTI_THREAD=1 "$bench/shbench/$1-new.c"
        ;;
    gs) [ -e "$SUITE/extern/large.pdf" ] || missing "no extern/large.pdf: the suite's build script downloads it" ;;
    *) missing "it is a source tree of its own, which the suite's build script downloads" ;;
    esac
}

run() {
    case $1 in
    cfrac) cpu $RUN ./program 17545186520507317056371138836327483792 ;;
    espresso) timed ./program table.espresso ;;
    barnes) timed ./program <input ;;
    larson | larson-sized)
        for_operations 10e6 's/.*Throughput = *\([0-9]*\) .*/\1/p' $RUN ./program 1 8 1000 5000 100 4141 "$threads"
        ;;
    alloc-test-1 | cache-*-1) arguments=1 ;;&
    alloc-test-N | cache-*-N) arguments=$threads ;;&
    alloc-test-*) timed ./program "$arguments" ;;
    cache-*) timed ./program "$arguments" 1000 1 600000 "$threads" ;;
    xmalloc-test)
        for_operations 8 's/.*free\/sec: *\([0-9.]*\) M.*/\1/p' $RUN ./program -w "$threads" -t 1 -s 64
        ;;
    malloc-large | malloc-large-old | glibc-simple) timed ./program ;;
    mleak) timed ./program 10 ;;
    mstress) timed ./program "$threads" 50 100 ;;
    rptest) timed ./program "$threads" 0 1 2 1000 1000 100 8 16000 ;;
    glibc-thread) for_operations 10e6 's/^\([0-9]*\) iterations.*/\1/p' $RUN ./program "$threads" ;;
    z3) cpu $RUN z3 -smt2 "$bench/z3/test1.smt2" ;;
    rbstress-1) timed ruby stress_mem.rb 1 ;;
    rbstress-N) timed ruby stress_mem.rb "$threads" ;;
    sh6bench | sh8bench) timed ./program $((2 * threads)) ;;
    gs) timed gs -dBATCH -dNODISPLAY "$SUITE/extern/large.pdf" ;;
    esac
}
"$@"
