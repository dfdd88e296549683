# Two NUMA nodes: the pool has pages, but only on the node that the program may not use; pages on chosen nodes; `pagelift
# pool` by nodes; a page of 1 GiB from the kernel's command line; and memory that is nearly gone.
echo "nodes: $(ls -d /sys/devices/system/node/node[0-9]* | wc -l)"
M=1024
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
# node_pool NODE N: exactly N pages on the node, after compaction where memory is in small pieces.
node_pool() {
    file=/sys/devices/system/node/node$1/hugepages/hugepages-${huge_kib}kB/nr_hugepages
    for try in 1 2 3 4 5; do
        echo $2 >$file
        [ "$(cat $file)" = "$2" ] && return
        echo 3 >/proc/sys/vm/drop_caches
        echo 1 >/proc/sys/vm/compact_memory
    done
    failed "node $1: $2 pages wanted, $(cat $file) given"
}

feature "two nodes: shortages on the allowed one"
node_pool 0 0
node_pool 1 40
check "pages on the other node may be used" Private_Hugetlb $((8 * M)) $any pie_by_default --pages hugetlb
launcher="starts_another_with memory-node=0 --"
check "pages on a node that is forbidden, hugetlb" Private_Hugetlb 0 0 pie_by_default --pages hugetlb --writable-pages hugetlb
check "pages on a node that is forbidden, auto" "$huge" $((8 * M)) $any pie_by_default --pages auto
check "pages on a node that is forbidden, threads" Private_Hugetlb 0 0 threads_of_a_constructor --pages hugetlb --writable-pages hugetlb
node_pool 0 2
check "two pages on the node that is allowed" Private_Hugetlb 0 $((4 * M)) pie_by_default --pages hugetlb --writable-pages hugetlb
launcher=
node_pool 1 0
node_pool 0 0

# said NAME PATTERN: the last lift gave this reason.
said() {
    if grep -q "$2" /tmp/err; then ok "$1"; else failed "$1: $(tr '\n' ' ' </tmp/err)"; fi
}

# on_node NODE: KiB of huge pages of $pid there: pool pages, and copies on transparent huge pages, which are the anonymous
# mappings that cannot be written.
on_node() {
    awk -v node="N$1=" 'NR == FNR {
        split($1, ends, "-")
        if ($2 ~ /^r-/ && $5 == 0 && $6 !~ /^\[v/) copy[ends[1]] = 1
        next
    } / huge / || $1 in copy {
        size = 0; pages = 0
        for (i = 2; i <= NF; i++) {
            if (index($i, node) == 1) pages = substr($i, length(node) + 1)
            if (index($i, "kernelpagesize_kB=") == 1) size = substr($i, 19)
        }
        sum += pages * size
    } END { print sum + 0 }' /proc/$pid/maps /proc/$pid/numa_maps
}

# placed NAME LEAST0 MOST0 LEAST1 MOST1 PROGRAM OPTIONS...: KiB on huge pages of each node.
placed() {
    name=$1 least0=$2 most0=$3 least1=$4 most1=$5 program=$6
    shift 6
    start $launcher pagelift run --report /tmp/report "$@" -- $program
    look_at_nodes
    stop "$name"
    status=$?
    judge_nodes
}
look_at_nodes() {
    on0=$(on_node 0) on1=$(on_node 1) used=hugetlb
    [ "$(smaps_sum $pid Private_Hugetlb)" = 0 ] && used=thp
}
judge_nodes() {
    if [ $status != 0 ]; then
        failed "$name: status $status, $(tr '\n' ' ' </tmp/err)"
    elif [ $on0 -lt $least0 ] || [ $on0 -gt $most0 ] || [ $on1 -lt $least1 ] || [ $on1 -gt $most1 ]; then
        failed "$name: $on0 KiB on node 0, $on1 on node 1; $(tr '\n' ' ' </tmp/err)"
    else
        [ $on0 = 0 ] && [ $on1 = 0 ] || way $used
        ok "$name ($on0 KiB on node 0, $on1 on node 1)"
    fi
}

node_pool 0 0
node_pool 1 40
launcher="starts_another_with memory-node=0 --"
check "pages on a node that is forbidden, again" Private_Hugetlb 0 0 pie_by_default --pages hugetlb
said "the shortage of the node is named" "pages of .* from the pool on node 0, 0 available there; 40 on other nodes may not be used"
launcher=
node_pool 0 40
feature "two nodes: --numa and memory policies"
code="--lift text,rodata"
placed "--numa node=1" 0 0 $((10 * M)) $any pie_by_default --pages hugetlb $code --numa node=1
grep -q '"node": 1' /tmp/report && ! grep -q '"node": 0' /tmp/report && ok "the report has the node" || failed "the report has no node"
placed "--numa node=0" $((10 * M)) $any 0 0 pie_by_default --pages hugetlb $code --numa node=0
placed "--numa interleave" $((4 * M)) $any $((4 * M)) $any pie_by_default --pages hugetlb $code --numa interleave
placed "--numa node=1, thp" 0 0 $((10 * M)) $any pie_by_default --pages thp $code --numa node=1
launcher="taskset 2"
placed "--numa local" 0 0 $((10 * M)) $any pie_by_default --pages hugetlb $code --numa local
launcher="starts_another_with memory-node=1 --"
placed "the program's own memory policy" 0 0 $((10 * M)) $any pie_by_default --pages hugetlb $code
launcher=
check "a node that does not exist" Private_Hugetlb 0 0 pie_by_default --pages hugetlb $code --numa node=7
said "the node that does not exist is named" "node 7 is not one it may take memory from, found nodes 0, 1"
node_pool 1 2
check "two pages on the wanted node" Private_Hugetlb 0 0 pie_by_default --pages hugetlb --lift text --numa node=1
said "the shortage of the wanted node is named" "from the pool on node 1, 2 available there; 40 on other nodes"
# Where the page cache shows the file in huge folios, the base is chosen for that, and covers less of a copy.
placed "two pages on the wanted node, thp for the rest" 0 0 $((8 * M)) $any pie_by_default $code --numa node=1

# A cpuset, and limits of a cgroup.
feature "two nodes: cpusets"
mkdir /tmp/groups
mount -t cgroup2 none /tmp/groups
echo "+cpuset +hugetlb" >/tmp/groups/cgroup.subtree_control
mkdir /tmp/groups/one
echo 1 >/tmp/groups/one/cpuset.mems
cat >/bin/in_group <<'END'
#!/bin/sh
echo $$ >/tmp/groups/one/cgroup.procs
exec "$@"
END
launcher="sh /bin/in_group"
check "a cpuset without pages" Private_Hugetlb 0 0 pie_by_default --pages hugetlb $code
said "the shortage of the cpuset is named" "from the pool on node 1, 2 available there; 40 on other nodes"
check "a node outside of the cpuset" Private_Hugetlb 0 0 pie_by_default --pages hugetlb $code --numa node=0
said "the node outside of the cpuset is named" "node 0 is not one it may take memory from, found node 1"
placed "a cpuset, thp" 0 0 $((10 * M)) $any pie_by_default --pages thp $code
node_pool 1 40
placed "a cpuset, pool" 0 0 $((10 * M)) $any pie_by_default --pages hugetlb $code
# Who lifts a running program is not in its cpuset, and runs on the other node. Before Linux 5.14 pages that are made
# present from outside lie where that process runs.
pages=hugetlb
case $(uname -r) in 5.*) pages=thp ;; esac
start $launcher pie_by_default
taskset 1 pagelift attach --pages $pages $code --report /tmp/report $pid 2>/tmp/err
name="attach to a program in a cpuset" least0=0 most0=$any least1=0 most1=$any
# Its base is where the kernel put it: of 6.6 MiB of code, and of constants, two or three whole huge pages.
[ $pages = hugetlb ] && most0=0 least1=$((8 * M))
look_at_nodes
stop "$name"
status=$?
judge_nodes
feature "shortage: hugetlb limits of cgroup v2"
limit=/tmp/groups/one/hugetlb.$((huge_kib / 1024))MB
for file in max rsvd.max; do
    echo $((2 * huge_kib * 1024)) >$limit.$file
    check "cgroup v2 hugetlb.$file of two pages" Private_Hugetlb 0 $((2 * huge_kib)) pie_by_default --pages hugetlb $code
    check "cgroup v2 hugetlb.$file, thp for the rest" "$huge" $((8 * M)) $any pie_by_default $code
    echo max >$limit.$file
done
feature "doctor: a pool on the wrong node"
node_pool 1 0
wrong="the pool of .* pages is on the wrong node"
finds "doctor: a pool on the wrong node" "$wrong" "all on other nodes (node 0); the process may use node 1"
sh -c "$(fix_of "is on the wrong node")"
moved=$(cat /sys/devices/system/node/node1/hugepages/hugepages-${huge_kib}kB/nr_hugepages)
$launcher pagelift doctor >/tmp/said 2>&1
if [ "$moved" = 40 ] && ! grep -q "$wrong" /tmp/said; then
    ok "doctor: its fix moves the pool"
else
    failed "doctor: $moved pages on node 1; $(tr '\n' '|' </tmp/said)"
fi
launcher=

# `pagelift pool` by nodes.
feature "pool: reserve, show, plan and release by node"
node_pool 0 0
node_pool 1 0
size=${huge_kib}K
on() { cat /sys/devices/system/node/node$1/hugepages/hugepages-${2:-$huge_kib}kB/${3:-nr_hugepages}; }
pagelift pool reserve $size:5@1 >/tmp/out 2>&1
[ "$? $(on 0) $(on 1)" = "0 0 5" ] && ok "pool reserve @1" || failed "pool reserve @1: $(on 0) $(on 1) $(tr '\n' ' ' </tmp/out)"
pagelift pool show >/tmp/out 2>&1
grep -q "^ *1 *5 *5 " /tmp/out && ok "pool show by node" || failed "pool show: $(tr '\n' '|' </tmp/out)"
pagelift pool plan $size:8@0 >/tmp/out 2>&1
grep -q "pagelift pool reserve .*:8@0" /tmp/out && ok "pool plan @0" || failed "pool plan: $(tr '\n' '|' </tmp/out)"
pagelift pool reserve --all-or-nothing $size:100000@0 >/tmp/out 2>&1
[ $? != 0 ] && [ "$(on 0) $(on 1)" = "0 5" ] && ok "what a node does not have goes back" || failed "all or nothing: $(on 0) $(on 1)"
pagelift pool release $size:5@1 >/tmp/out 2>&1
[ "$(on 1)" = 0 ] && ok "pool release @1" || failed "pool release @1: $(on 1)"

# The page of 1 GiB that the kernel's command line asks for: used, then split (Linux 5.16).
feature "pool: a page of 1 GiB from boot"
gib=1048576
[ "$(on 1 $gib)" = 1 ] && ok "a page of 1 GiB on node 1" || failed "pages of 1 GiB: $(on 0 $gib) on node 0, $(on 1 $gib) on node 1"
if [ -e /sys/kernel/mm/hugepages/hugepages-${gib}kB/demote ]; then
    feature "pool: demote a page of 1 GiB"
    pagelift pool demote 1G:1@1 >/tmp/out 2>&1
    [ "$? $(on 1 $gib) $(on 1) $(on 0)" = "0 0 512 0" ] && ok "pool demote 1G" || failed "pool demote: $(on 1 $gib) $(on 1), $(tr '\n' ' ' </tmp/out)"
    placed "code on pages of the split one" 0 0 $((10 * M)) $any pie_by_default --pages hugetlb $code
    pagelift pool release $size:all >/tmp/out 2>&1
    [ "$(on 1)" = 0 ] && ok "the split page is released" || failed "pool release: $(on 1), $(tr '\n' ' ' </tmp/out)"
else
    pagelift pool demote 1G:1@1 >/tmp/out 2>&1
    [ $? != 0 ] && [ "$(on 1 $gib)" = 1 ] && ok "pool demote says that it cannot" || failed "pool demote: $(tr '\n' ' ' </tmp/out)"
    echo 0 >/sys/kernel/mm/hugepages/hugepages-${gib}kB/nr_hugepages
fi

feature "shortage: memory"
# The pool takes all memory but some MiB; transparent huge pages cannot be had, and nothing may be killed for them.
for left in 60 40 30; do
    pool 0
    free_mib=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
    echo $(((free_mib - left) * M / huge_kib)) >$pool_file
    same "$left MiB of memory are left" no_libc --pages thp
done
pool 0
