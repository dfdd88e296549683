# Two NUMA nodes: the pool has pages, but only on the node that the program may not use; and memory that is nearly gone.
echo "nodes: $(ls -d /sys/devices/system/node/node[0-9]* | wc -l)"
M=1024
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
node_pool() { echo $2 >/sys/devices/system/node/node$1/hugepages/hugepages-${huge_kib}kB/nr_hugepages; }

node_pool 0 0
node_pool 1 40
check "pages on the other node may be used" Private_Hugetlb $((8 * M)) $any pie_by_default --pages hugetlb
launcher="starts_another_with memory-node=0 --"
check "pages on a node that is forbidden, hugetlb" Private_Hugetlb 0 0 pie_by_default --pages hugetlb --writable-pages hugetlb
check "pages on a node that is forbidden, auto" AnonHugePages $((8 * M)) $any pie_by_default --pages auto
check "pages on a node that is forbidden, threads" Private_Hugetlb 0 0 threads_of_a_constructor --pages hugetlb --writable-pages hugetlb
node_pool 0 2
check "two pages on the node that is allowed" Private_Hugetlb 0 $((4 * M)) pie_by_default --pages hugetlb --writable-pages hugetlb
launcher=
node_pool 1 0
node_pool 0 0

# The pool takes all memory but some MiB; transparent huge pages cannot be had, and nothing may be killed for them.
for left in 60 40 30; do
    pool 0
    free_mib=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
    echo $(((free_mib - left) * M / huge_kib)) >$pool_file
    same "$left MiB of memory are left" no_libc --pages thp
done
pool 0
