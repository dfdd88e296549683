# Two NUMA nodes: a pool only on the node that the program may not use; pages on chosen nodes; `pagelift pool` by nodes;
# a page of 1 GiB from the kernel's command line; and memory that is nearly exhausted.
echo "nodes: $(ls -d /sys/devices/system/node/node[0-9]* | wc -l)"
M=1024
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
# node_pool NODE N: exactly N pages on the node, after compaction if memory is fragmented.
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

# free_kib NODE: its free memory.
free_kib() { awk '/MemFree:/ { print $4 }' /sys/devices/system/node/node$1/meminfo; }

# fill_node NODE: its pool takes all available pages, until compaction and empty caches give no more. Free memory that is
# scattered in smaller pieces goes to files in /ballast, except for 4 MiB.
fill_node() {
    file=/sys/devices/system/node/node$1/hugepages/hugepages-${huge_kib}kB/nr_hugepages before=-1
    while [ $(cat $file) -gt $before ]; do
        before=$(cat $file)
        echo 3 >/proc/sys/vm/drop_caches
        echo 1 >/proc/sys/vm/compact_memory
        echo 100000 >$file
    done
    mkdir -p /ballast
    mount -t tmpfs -o mpol=prefer:$1 none /ballast
    for try in 1 2 3; do
        more=$(($(free_kib $1) / 1024 - 4))
        [ $more -le 0 ] || head -c ${more}M /dev/zero >/ballast/$try
    done
}

feature "two nodes: shortages on the allowed one"
node_pool 0 0
node_pool 1 40
check "pages on the other node may be used" Private_Hugetlb $((8 * M)) $any pie_by_default --pages hugetlb
launcher="starts_another_with memory-node=0 --"
check "pages on a node that is forbidden, hugetlb" Private_Hugetlb 0 0 pie_by_default --pages hugetlb --writable-pages hugetlb
check "pages on a node that is forbidden, auto" "$huge" $((8 * M)) $any pie_by_default --pages auto --start-cost any
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

# on_node NODE: KiB of huge pages of $pid on the node: pool pages, and copies on transparent huge pages, which are
# anonymous mappings without write permission.
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
# If the page cache shows the file in huge folios, the base is chosen for that, and covers less of a copy.
placed "two pages on the wanted node, thp for the rest" 0 0 $((4 * M)) $any pie_by_default --prepare never $code --numa node=1

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
# A lifter is not in the cpuset of the running program, and runs on the other node. Before Linux 5.14 pages that it
# makes present are on its own node.
pages=hugetlb
case $(uname -r) in 5.*) pages=thp ;; esac
start $launcher pie_by_default
taskset 1 pagelift attach --pages $pages $code --report /tmp/report $pid 2>/tmp/err
name="attach to a program in a cpuset" least0=0 most0=$any least1=0 most1=$any
# The kernel chose the base: of 6.6 MiB of code, and of constants, two or three whole huge pages.
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
    check "cgroup v2 hugetlb.$file, thp for the rest" "$huge" $((4 * M)) $any pie_by_default --prepare never $code
    echo max >$limit.$file
done
on() { cat /sys/devices/system/node/node$1/hugepages/hugepages-${2:-$huge_kib}kB/${3:-nr_hugepages}; }
feature "doctor: a pool on the wrong node"
wrong="the pool of .* pages is on the wrong node"
# moved PAGES: doctor's fix moves the pool to node 1, which then has this number of pages.
moved() {
    finds "doctor: a pool on the wrong node" "$wrong" "all on other nodes (node 0); the process may use node 1"
    sh -c "$(fix_of "is on the wrong node")"
    $launcher pagelift doctor >/tmp/said 2>&1
    if [ "$(on 1)" = $1 ] && ! grep -q "$wrong" /tmp/said; then
        ok "doctor: its fix moves the pool"
    else
        failed "doctor: $(on 1) pages on node 1, due are $1; $(tr '\n' '|' </tmp/said)"
    fi
}
# Pages in use on a node stay, and count.
start $launcher pagelift run --pages hugetlb $code -- pie_by_default
used=$(($(on 1) - $(on 1 $huge_kib free_hugepages)))
node_pool 1 $used
[ $used -gt 0 ] || failed "doctor: no page of node 1 is in use"
moved $((used + 40))
stop "doctor: a pool on the wrong node"
node_pool 1 0
moved 40
launcher=

# `pagelift pool` by nodes.
feature "pool: reserve, show, plan and release by node"
node_pool 0 0
node_pool 1 0
size=${huge_kib}K
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

# The reservations of a unit that is restarted and stopped.
feature "pool: a reservation that is recorded, by node"
node_pool 0 2
pagelift pool reserve --add --record unit $size:3@0 $size:4@1 >/tmp/out 2>&1
first="$? $(on 0) $(on 1)"
pagelift pool reserve --add --record unit $size:3@0 $size:5@1 >/tmp/out 2>&1
second="$? $(on 0) $(on 1)"
pagelift pool release --record unit $size:3@0 $size:5@1 >/tmp/out 2>&1
case "$first, $second, $? $(on 0) $(on 1)" in
    "0 5 4, 0 5 5, 0 2 0") ok "pool reserve --record" ;;
    *) failed "pool reserve --record: $first, $second, $(on 0) $(on 1); $(tr '\n' '|' </tmp/out)" ;;
esac
node_pool 0 0

# Pages that a lift takes: planned, reserved and returned by node.
feature "pool: plan, reserve --for and --persist by node"
pagelift pool plan --numa node=1 $code -- pie_by_default >/tmp/out 2>&1
grep -q "pagelift pool reserve [^ ]*@1\$" /tmp/out && ok "pool plan --numa node=1" || failed "pool plan --numa node=1: $(tr '\n' '|' </tmp/out)"
starts_another_with memory-node=1 -- pagelift pool plan $code -- pie_by_default >/tmp/out 2>&1
grep -q "pagelift pool reserve [^ ]*@1\$" /tmp/out && ok "pool plan by memory policy" || failed "pool plan by memory policy: $(tr '\n' '|' </tmp/out)"
start starts_another_with memory-node=1 -- pie_by_default
pagelift pool plan $code $pid >/tmp/said 2>&1
stop "pool plan PID"
grep -q "pagelift pool reserve [^ ]*@1\$" /tmp/said && ok "pool plan PID by its memory policy" || failed "pool plan PID: $(tr '\n' '|' </tmp/said)"
pagelift pool plan --numa node=7 -- pie_by_default >/tmp/said 2>&1
[ $? = 125 ] && says_of=$(grep -c "node 7 is not one it may take memory from, found nodes 0, 1; fix: " /tmp/said) &&
    [ $says_of = 1 ] && ok "pool plan names a node that is not there" || failed "pool plan node=7: $(tr '\n' '|' </tmp/said)"
# lent NAME PAGES OR OPTIONS...: the pools of nodes 0 and 1 while a program runs on them.
lent() {
    name=$1 due=$2 or=$3
    shift 3
    start $launcher pagelift pool reserve --for --pages hugetlb $code "$@" -- pie_by_default
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        held="$(on 0) $(on 1)"
        case $held in $due | $or) break ;; esac
        usleep 500000
    done
    stop "$name"
    status=$?
    case "$status $(on 0) $(on 1) $held" in
        "0 0 0 "$due | "0 0 0 "$or) ok "$name ($held pages)" && way hugetlb ;;
        *) failed "$name: status $status, $held pages, $(on 0) $(on 1) afterwards; $(tr '\n' ' ' </tmp/err)" ;;
    esac
}
lent "pool reserve --for on node 1" "0 [1-9]*" none --numa node=1
# All pages are reserved on both nodes, because the start's node is not known; those of the other node are returned
# after it.
lent "pool reserve --for: what is not used goes back" "0 [1-9]*" "[1-9]* 0" --numa local
launcher="starts_another_with memory-node=1 --"
lent "pool reserve --for by memory policy" "0 [1-9]*" none
launcher=
pagelift pool reserve --persist $size:3@1 >/tmp/out 2>&1
grep -q "ExecStart=.* pool reserve --add .*:3@1\$" /etc/systemd/system/pagelift-pool-main.service && [ "$(on 1)" = 3 ] &&
    pagelift pool plan --uninstall >/tmp/out 2>&1 && [ ! -e /etc/systemd/system/pagelift-pool-main.service ] &&
    ok "pool reserve --persist @1" || failed "pool reserve --persist: $(on 1), $(tr '\n' ' ' </tmp/out)"
pagelift pool release $size:3@1 >/tmp/out 2>&1
case $(uname -r) in
    5.1[0-5].*)
        pagelift pool plan --print grub $size:3@1 >/tmp/out 2>&1
        [ $? = 125 ] && grep -q "since Linux 5.16, found 5.*needed: node 1; fix: --install systemd" /tmp/out ;;
    *)
        pagelift pool plan --print grub $size:3@1 >/tmp/out 2>&1
        grep -q "hugepages=1:3\"" /tmp/out ;;
esac && ok "pool plan --print grub @1" || failed "pool plan --print grub: $(tr '\n' '|' </tmp/out)"

# pool_on NODE: pages of the pool of $pid there.
pool_on() {
    awk -v node="N$1=" '/ huge / { for (i = 2; i <= NF; i++) if (index($i, node) == 1) sum += substr($i, length(node) + 1) }
        END { print sum + 0 }' /proc/$pid/numa_maps
}
# heap_on NAME PAGES PROGRAM WORDS...: the pages that its heap has taken on each node.
heap_on() {
    name=$1 due=$2
    shift 2
    start $launcher "$@"
    found="$(pool_on 0) $(pool_on 1)"
    stop "$name"
    if [ "$? $found" = "0 $due" ]; then
        way hugetlb
        ok "$name"
    else
        failed "$name: $found pages of nodes 0 and 1, due are $due; $(tr '\n' ' ' </tmp/err)"
    fi
}
# Before Linux 5.14 no call populates pages safely, so the heap takes none, and pages that are made present from outside
# are on the node of that process.
case $(uname -r) in 5.1[0-3].*) populates= ;; *) populates=yes ;; esac
if [ -e /bin/libpagelift_heap.so ] && [ -n "$populates" ]; then
    feature "two nodes: a heap on the pool"
    node_pool 0 8
    node_pool 1 8
    heap="pagelift run --pages thp --heap=2M"
    heap_on "a heap on both nodes" "4 4" $heap -- pie_by_default
    heap_on "a heap, --numa node=1" "0 4" $heap --numa node=1 -- pie_by_default
    heap_on "a heap, --numa interleave" "2 2" $heap --heap-reserve=8M --numa interleave -- pie_by_default
    launcher="starts_another_with memory-node=0 --"
    heap_on "a heap, by memory policy" "4 0" $heap -- pie_by_default
    heap_on "a heap, --numa against the memory policy" "0 4" $heap --numa node=1 -- pie_by_default
    launcher="sh /bin/in_group"
    heap_on "a heap, by cpuset" "0 4" $heap -- pie_by_default
    launcher=
    heap_on "a heap, by the memory policy of a descendant" "0 4" $heap --only pie_by_default -- starts_another_with memory-node=1 -- pie_by_default
    heap_on "a heap by PAGELIFT, numa=node=1" "0 4" env LD_PRELOAD=/bin/libpagelift_heap.so "PAGELIFT=only=pie_by_default heap=2M numa=node=1" pie_by_default
    launcher="starts_another_with memory-node=0 --"
    heap_on "a heap by PAGELIFT, by memory policy" "4 0" env LD_PRELOAD=/bin/libpagelift_heap.so "PAGELIFT=only=pie_by_default heap=2M" pie_by_default
    launcher="sh /bin/in_group"
    node_pool 1 0
    heap_on "a heap without pages on its node" "0 0" $heap -- pie_by_default
    said "a heap: the shortage of the node is named" "no free page of 2 MiB in the pool on node 1; 8 on other nodes may not be used; fix: pagelift pool reserve"
    launcher=
    feature "two nodes: attach --numa and the library's numa"
    node_pool 1 40
    start pie_by_default
    pagelift attach --pages hugetlb $code --numa node=1 $pid >/tmp/said 2>&1
    found="$(pool_on 0) $(pool_on 1)"
    stop "attach --numa node=1"
    case "$? $found" in "0 0 "[1-9]*) ok "attach --numa node=1 ($found)" && way hugetlb ;; *) failed "attach --numa node=1: $found; $(cat /tmp/said)" ;; esac
    start env LD_PRELOAD=/lib/libpagelift.so "PAGELIFT=only=pie_by_default pages=hugetlb lift=text,rodata numa=node=1" pie_by_default
    found="$(pool_on 0) $(pool_on 1)"
    stop "the library, numa=node=1"
    case "$? $found" in "0 0 "[1-9]*) ok "the library, numa=node=1 ($found)" && way hugetlb ;; *) failed "the library, numa=node=1: $found; $(cat /tmp/err)" ;; esac
    node_pool 0 0
    node_pool 1 0
fi

# The page of 1 GiB from the kernel's command line: used (sizes.sh), then split (Linux 5.16).
feature "pool: a page of 1 GiB from boot"
gib=1048576
[ "$(on 1 $gib)" = 1 ] && ok "a page of 1 GiB on node 1" || failed "pages of 1 GiB: $(on 0 $gib) on node 0, $(on 1 $gib) on node 1"
case $(uname -r) in
    5.*) ;;
    *)
        size_is_used $gib
        feature "heap on a pool page of 1 GiB"
        heap_on "a heap on the page of 1 GiB" "0 1" pagelift run --pages thp --heap=1G -- pie_by_default
        ;;
esac
if [ -e /sys/kernel/mm/hugepages/hugepages-${gib}kB/demote ]; then
    feature "pool: demote a page of 1 GiB"
    pagelift pool demote 1G:1@1 >/tmp/out 2>&1
    [ "$? $(on 1 $gib) $(on 1) $(on 0)" = "0 0 512 0" ] && ok "pool demote 1G" || failed "pool demote: $(on 1 $gib) $(on 1), $(tr '\n' ' ' </tmp/out)"
    placed "code on pages of the split one" 0 0 $((10 * M)) $any pie_by_default --pages hugetlb $code
    pagelift pool release $size:all >/tmp/out 2>&1
    [ "$(on 1)" = 0 ] && ok "the split page is released" || failed "pool release: $(on 1), $(tr '\n' ' ' </tmp/out)"
else
    feature "pool: a page of 1 GiB from boot"
    pagelift pool demote 1G:1@1 >/tmp/out 2>&1
    [ $? != 0 ] && [ "$(on 1 $gib)" = 1 ] && ok "pool demote says that it cannot" || failed "pool demote: $(tr '\n' ' ' </tmp/out)"
    echo 0 >/sys/kernel/mm/hugepages/hugepages-${gib}kB/nr_hugepages
fi

# Copies of the text by node, of a file on a disk: the kernel does not report changes of an initramfs file.
store_of() { awk -v node="N$1=" '/ file=\/(store|pool)\// {
        pages = size = 0
        for (i = 2; i <= NF; i++) {
            if (index($i, node) == 1) pages = substr($i, length(node) + 1)
            if (index($i, "kernelpagesize_kB=") == 1) size = substr($i, 19)
        }
        sum += pages * size
    } END { print sum + 0 }' /proc/$pid/numa_maps; }

# from_copy NAME NODE OPTIONS...: the program runs from the store's copy for the node.
from_copy() {
    name=$1 node=$2 other=$((1 - $2))
    shift 2
    start $launcher pagelift run -v --report /tmp/report "$@" -- /files/pie_by_default
    here=$(store_of $node) elsewhere=$(store_of $other)
    stop "$name"
    status=$?
    if [ $status = 0 ] && [ $here -ge $((8 * M)) ] && [ $elsewhere = 0 ] && ! grep -q "far_pages" /tmp/report; then
        way image
        ok "$name ($here KiB on node $node)"
    else
        failed "$name: status $status, $here KiB on node $node, $elsewhere on node $other; $(tr '\n' ' ' </tmp/err)"
    fi
}
# says NAME TEXT FILE
says() { if grep -q "$2" $3; then ok "$1"; else failed "$1: $(tr '\n' '|' <$3)"; fi; }
copies_by_node() {
    from_copy "$1: a program that is to use node 0" 0 --pages image --numa node=0
    launcher="taskset 1"
    from_copy "$1: a program that may run on node 0 alone" 0 --pages image
    launcher="taskset 2"
    from_copy "$1: a program that may run on node 1 alone" 1
    from_copy "$1: a program on node 1 that is to use node 0" 0 --numa node=0
    launcher="sh /bin/in_group"
    from_copy "$1: a cpuset of the memory of node 1" 1
    launcher=
}
if [ -d /modules ]; then
    feature "two nodes: a copy of the text for each"
    for module in /modules/*; do insmod $module || failed "loading $module"; done
    mkdir /files
    mount -t ext4 /dev/vda /files && cp /bin/pie_by_default /bin/fixed_address_executable /files
    sync
    export PAGELIFT_STORE=/store
    pagelift image setup --store /store --size 128M >/tmp/said 2>&1 || failed "no store: $(cat /tmp/said)"
    pagelift image add --per-node /files/pie_by_default >/tmp/said 2>&1
    [ "$? $(grep -c 'for node [01]$' /tmp/said)" = "0 2" ] && ok "image add --per-node" || failed "image add: $(cat /tmp/said)"
    copies_by_node tmpfs
    # The kernel has chosen the base, and no copies for it exist yet.
    start taskset 2 /files/pie_by_default
    taskset 1 pagelift attach --pages image $pid 2>/tmp/err
    here=$(store_of 1) elsewhere=$(store_of 0)
    stop "attach: the copy of the program's node"
    [ "$? $elsewhere" = "0 0" ] && [ $here -gt 0 ] && ok "attach: the copy of the program's node ($here KiB)" ||
        failed "attach: $here KiB on node 1, $elsewhere on node 0; $(cat /tmp/err)"
    pagelift image list >/tmp/said
    grep -q ' 0 *same ' /tmp/said && grep -q ' 1 *same ' /tmp/said && ok "image list shows the nodes" || failed "image list: $(tr '\n' '|' </tmp/said)"
    # Node 1 runs short of memory, so no copy can be made there: the shared image on the other node is used.
    pagelift image remove --force /files/pie_by_default >/tmp/said
    taskset 1 pagelift image add /files/pie_by_default >/tmp/said 2>&1
    taskset 1 pagelift image add --per-node /files/fixed_address_executable >>/tmp/said 2>&1
    fill_node 1
    pagelift image add --per-node /files/pie_by_default >/tmp/said 2>&1
    echo "free on node 1: $(free_kib 1) KiB" >>/tmp/said
    says "no room for a copy" "node 1 .*; fix: free memory on that node" /tmp/said
    start taskset 2 pagelift run -v --pages image -- /files/pie_by_default
    here=$(store_of 0)
    stop "the shared image where the node has no room"
    [ $? = 0 ] && [ $here -ge $((8 * M)) ] && ok "the shared image where the node has no room" || failed "$here KiB: $(cat /tmp/err)"
    says "why it is not the copy" "not from the copy for its node: pie_by_default: .*node 1 .*; fix: free memory on that node" /tmp/err
    says "the shared image lies on another node" "on another node: .* on node 0 of .* runs on node 1; fix.*image add --per-node" /tmp/err
    rm -f /ballast/*
    node_pool 1 0
    echo >>/files/pie_by_default
    sync
    pagelift image gc --dry-run >/tmp/said
    says "gc names the node" "would remove .*(of /files/pie_by_default, for node 0)" /tmp/said
    pagelift image gc >/tmp/said

    feature "two nodes: a copy of the text for each, on hugetlbfs"
    cp /bin/pie_by_default /files
    sync
    node_pool 0 20
    export PAGELIFT_STORE=/pool
    pagelift image setup --hugetlbfs --store /pool >/tmp/said 2>&1 || failed "no store: $(cat /tmp/said)"
    pagelift image add --per-node /files/pie_by_default >/tmp/said 2>&1
    says "no pages for a copy" "node 1 has too little .* 0 B in free pages of the pool; fix: pagelift pool reserve .*@1" /tmp/said
    node_pool 1 20
    pagelift image add --per-node /files/pie_by_default >/tmp/said 2>&1 || failed "image add: $(cat /tmp/said)"
    copies_by_node hugetlbfs
    pagelift image remove --force /files/pie_by_default >/tmp/said
    node_pool 0 0
    node_pool 1 0

    # On xfs, which has huge folios since 5.18.
    feature "two nodes: huge folios of a file on another node"
    export PAGELIFT_STORE=/none
    fixed=/folios/fixed_address_executable
    mkdir /folios
    mount -t xfs /dev/vdb /folios && cp /bin/fixed_address_executable /folios
    sync
    echo 1 >/proc/sys/vm/drop_caches
    taskset 1 pagelift cache prepare $fixed >/tmp/said 2>&1 || failed "no huge folios: $(tail -n 1 /tmp/said)"
    far="on another node: $fixed: .* on node 0 of .* runs on node 1; fix.* add --per-node $fixed"
    start taskset 2 pagelift run -v --pages file -- $fixed
    pagelift status $pid >/tmp/status 2>&1
    pagelift inspect --pages file $pid >/tmp/inspected 2>&1
    pagelift doctor $pid >/tmp/examined 2>&1
    [ "$(smaps_sum $pid FilePmdMapped)" -ge $((8 * M)) ] && way file
    stop "huge folios on another node"
    says "huge folios on another node: the report" "$far" /tmp/err
    says "huge folios on another node: status" "$far" /tmp/status
    says "huge folios on another node: inspect" "$far" /tmp/inspected
    tr -s '\n ' '  ' </tmp/examined >/tmp/said
    says "huge folios on another node: doctor" "another NUMA node .* $fixed: .* on node 0 .* add --per-node $fixed" /tmp/said
    start taskset 1 pagelift run -v --pages file -- $fixed
    stop "huge folios on its own node"
    grep -q "on another node" /tmp/err && failed "huge folios on its own node: $(cat /tmp/err)" || ok "huge folios on its own node"
fi

feature "shortage: memory"
# The pool takes nearly all memory; no transparent huge pages are available, and no process may be killed for them.
for left in 60 40 30; do
    pool 0
    free_mib=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
    echo $(((free_mib - left) * M / huge_kib)) >$pool_file
    same "$left MiB of memory are left" no_libc --pages thp
done
pool 0
