# Base pages of 16 KiB: a transparent huge page and the usual page of the pool have 32 MiB, and there is a pool of 2 MiB.
echo "kernel $(uname -r) on $(uname -m)"
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
M=1024
feature "base pages of 16 KiB"
base=$(awk '$1 == "KernelPageSize:" { print $2; exit }' /proc/self/smaps)
[ "$base" = 16 ] && [ "$huge_kib" = 32768 ] && ok "$base KiB, the usual page of the pool has $huge_kib" ||
    failed "base pages of $base KiB, the usual page of the pool has $huge_kib"

# All checks from here on use the pool of 2 MiB.
huge_kib=2048
pool_file=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
free_pages() { cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages; }
pool 40
of_pool="--pages hugetlb --page-size 2M"
feature "run: pool pages"
check "hugetlb: code and constants" Private_Hugetlb $((8 * M)) $((14 * M)) pie_by_default $of_pool --lift text,rodata
for program in pie_by_default static_pie fixed_address_executable; do
    check "hugetlb: $program" Private_Hugetlb $((18 * M)) $((30 * M)) $program $of_pool --writable-pages hugetlb
done
check "hugetlb: sealed pages stay sealed" Private_Hugetlb $((6 * M)) $any relro_stays_read_only $of_pool --writable-pages hugetlb
check "hugetlb: fork" Private_Hugetlb $((4 * M)) $any fork_and_write $of_pool
feature "brk: the heap grows and shrinks after a lift"
check "hugetlb: brk" Private_Hugetlb $((2 * M)) $any heap_grows_and_shrinks $of_pool
feature "run: transparent huge pages"
check "thp: code" AnonHugePages $((32 * M)) $((64 * M)) large_pie --pages thp --lift text
check "thp: everything" AnonHugePages $((64 * M)) $((128 * M)) large_pie --pages thp
check "thp: too small for one" AnonHugePages 0 0 pie_by_default --pages thp

feature "attach and detach"
plain_of large_pie
for source in "thp" "hugetlb --page-size 2M"; do
    start large_pie
    pagelift attach --pages $source --lift text $pid 2>/tmp/err
    lifted=$(smaps_sum $pid "AnonHugePages|Private_Hugetlb")
    pagelift detach $pid 2>>/tmp/err
    left=$(smaps_sum $pid "AnonHugePages|Private_Hugetlb")
    stop "attach --pages $source"
    echo "status $?" >>/tmp/out
    if cmp -s $plain /tmp/out && [ $lifted -ge $((32 * M)) ] && [ $left = 0 ]; then
        way ${source%% *}
        ok "attach --pages $source ($lifted KiB)"
    else
        failed "attach --pages $source: $lifted KiB, then $left; $(tr '\n' ' ' </tmp/err) $(tail -n 3 /tmp/out | tr '\n' ' ')"
    fi
done

feature "shortage: a small pool, none, no source at all"
pool 3
check "pool of three pages" Private_Hugetlb 0 $((6 * M)) pie_by_default $of_pool --writable-pages hugetlb
pool 0
check "empty pool" Private_Hugetlb 0 0 pie_by_default $of_pool

feature "library: a program lifts itself"
pool 40
own "library: lifts itself and restores" lifts_itself_onto_2_mib

# answers WORDS...: the command succeeds, and names no page size that this kernel does not have.
feature "doctor, inspect, pool and probe"
answers() {
    "$@" >/tmp/said 2>&1
    status=$?
    if [ $status -gt 2 ] || grep -q panicked /tmp/said; then
        failed "$*: status $status, $(tail -n 3 /tmp/said | tr '\n' ' ')"
    else
        ok "$*"
    fi
}
answers pagelift doctor
answers pagelift pool show
answers pagelift pool plan -- large_pie
answers pagelift inspect /bin/large_pie
start large_pie
answers pagelift status $pid
answers pagelift inspect $pid
stop "status and inspect"
