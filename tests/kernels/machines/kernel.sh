# Checks of every kernel: each source of pages, writable ranges, the heap, threads, forks, shortages.
echo "kernel $(uname -r) on $(uname -m)"
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
M=1024

pool 60
feature "run: pool pages"
check "hugetlb: code and constants" Private_Hugetlb $((10 * M)) $((14 * M)) pie_by_default --pages hugetlb --lift text,rodata
check "hugetlb: everything" Private_Hugetlb $((20 * M)) $((30 * M)) pie_by_default --pages hugetlb --writable-pages hugetlb
check "hugetlb: static and position-independent" Private_Hugetlb $((20 * M)) $((30 * M)) static_pie --pages hugetlb --writable-pages hugetlb
check "hugetlb: fixed address" Private_Hugetlb $((20 * M)) $((30 * M)) fixed_address_executable --pages hugetlb --writable-pages hugetlb
check "hugetlb: no libc" Private_Hugetlb $((4 * M)) $((8 * M)) no_libc --pages hugetlb --writable-pages hugetlb
check "hugetlb: sealed pages stay sealed" Private_Hugetlb $((6 * M)) $any relro_stays_read_only --pages hugetlb --writable-pages hugetlb
check "hugetlb: threads of a constructor" Private_Hugetlb $((4 * M)) $((6 * M)) threads_of_a_constructor --pages hugetlb --writable-pages hugetlb
check "hugetlb: fork" Private_Hugetlb $((4 * M)) $any fork_and_write --pages hugetlb

feature "run: transparent huge pages"
check "thp: everything" AnonHugePages $((16 * M)) $((30 * M)) pie_by_default --pages thp
check "thp: static and position-independent" AnonHugePages $((16 * M)) $((30 * M)) static_pie --pages thp
check "thp: no libc" AnonHugePages $((4 * M)) $((8 * M)) no_libc --pages thp
check "thp: threads of a constructor" AnonHugePages $((4 * M)) $((6 * M)) threads_of_a_constructor --pages thp
check "thp: fork" AnonHugePages $((8 * M)) $any fork_and_write --pages thp
check "thp: signals at the start" AnonHugePages $((4 * M)) $any handles_signals_at_start --pages thp

feature "brk: the heap grows and shrinks after a lift"
check "hugetlb: brk" Private_Hugetlb $((2 * M)) $any heap_grows_and_shrinks --pages hugetlb
check "thp: brk" AnonHugePages $((2 * M)) $any heap_grows_and_shrinks --pages thp

feature "library: a program lifts itself"
own "library: lifts itself" lifts_itself
own "library: restores" restores_byte_for_byte
own "library: other threads" other_threads_run
feature "fork guard: children of a program with data on the pool"
own "library: forks with an empty pool" forks_with_an_empty_pool
own "library: handlers of the program around fork" handlers_of_the_program_around_fork

feature "shortage: a small pool, none, no source at all"
pool 3
check "pool of three pages" Private_Hugetlb 0 $((6 * M)) pie_by_default --pages hugetlb --writable-pages hugetlb
check "pool of three pages, threads" Private_Hugetlb 0 $((6 * M)) threads_of_a_constructor --pages hugetlb --writable-pages hugetlb
check "pool of three pages, thp for the rest" Private_Hugetlb 0 $((6 * M)) pie_by_default --pages auto
pool 0
check "empty pool" Private_Hugetlb 0 0 pie_by_default --pages hugetlb
echo never >/sys/kernel/mm/transparent_hugepage/enabled
check "no source at all" AnonHugePages 0 0 pie_by_default
check "thp wanted, switched off" AnonHugePages 0 0 pie_by_default --pages thp
feature "transparent huge pages set to always"
echo always >/sys/kernel/mm/transparent_hugepage/enabled
check "thp always" AnonHugePages $((12 * M)) $any pie_by_default --pages thp
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled

feature "shortage: vm.max_map_count"
pool 40
usual=$(cat /proc/sys/vm/max_map_count)
echo 300 >/proc/sys/vm/max_map_count
if $makes_all_checks; then room="0 1 2 3 4 5 6 8 10 14 20"; else room="0 2 4 6 10 20"; fi
for left in $room; do
    export MAPPINGS_LEFT=$left
    same "$left mappings left, hugetlb" near_the_limit_of_mappings --pages hugetlb --writable-pages hugetlb
    same "$left mappings left, thp" near_the_limit_of_mappings --pages thp
done
echo $usual >/proc/sys/vm/max_map_count
[ "$(free_pages)" = 40 ] && ok "no page of the pool is lost" || failed "$(free_pages) of 40 pages are free at the end"
same "a small program" /bin/true
