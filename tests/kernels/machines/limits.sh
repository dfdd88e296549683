# Limits of control groups of version 1, on one node, of hugetlb and of memory.
pool 40
size=$((huge_kib / 1024))MB
feature "shortage: hugetlb limits of cgroup v1"
if group_of 1 hugetlb; then
    for file in limit_in_bytes rsvd.limit_in_bytes; do
        echo $((2 * huge_kib * 1024)) >$GROUP/hugetlb.$size.$file
        lifts_under "cgroup v1 hugetlb.$file of two pages" $((2 * huge_kib))
        echo -1 >$GROUP/hugetlb.$size.$file
    done
    no_group
else
    no_controller hugetlb
fi
feature "shortage: memory limits of cgroup v1"
if group_of 1 memory; then
    under_memory "cgroup v1 memory limit" $GROUP/memory.limit_in_bytes
    no_group
else
    no_controller memory
fi
[ "$(free_pages)" = 40 ] && ok "no page of the pool is lost" || failed "$(free_pages) of 40 pages are free after the limits"
