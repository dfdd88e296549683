# Control groups of version 1 and 2, and lifts in them.
cat >/bin/in_group <<'END'
#!/bin/sh
echo $$ >$GROUP/cgroup.procs
exec "$@"
END
code="--lift text,rodata"

# lifts_under NAME MOST: a start and a lift of a running program in the group use at most MOST KiB of the pool, and the
# program is unharmed; a start takes transparent huge pages for the rest.
lifts_under() {
    launcher="sh /bin/in_group"
    check "$1: run" Private_Hugetlb 0 $2 pie_by_default --pages hugetlb $code
    check "$1: run, thp for the rest" "$huge" $((4 * M)) $any pie_by_default --prepare never $code
    attached "$1" hugetlb $2
    launcher=
}

# attached NAME PAGES MOST: a running program in the group is lifted and ends as usual; it has at most MOST KiB of the
# pool.
attached() {
    plain_of pie_by_default
    start sh /bin/in_group pie_by_default
    sh /bin/in_group pagelift attach --pages $2 $code $pid >/tmp/said 2>&1
    found=$(smaps_sum $pid Private_Hugetlb)
    stop "$1: attach"
    echo "status $?" >>/tmp/out
    if cmp -s $plain /tmp/out && [ "${found:-0}" -le $3 ]; then
        ok "$1: attach ($found KiB; $(tr '\n' ' ' </tmp/said))"
    else
        failed "$1: attach: $found KiB, $(tail -n 3 /tmp/out | tr '\n' ' '); $(tr '\n' ' ' </tmp/said)"
    fi
}

# under_memory NAME FILE: with less memory than a lift needs, the program runs if it would run without a lift.
under_memory() {
    for mib in 64 32 16; do
        echo $((mib * M * M)) >$2
        launcher="sh /bin/in_group"
        same "$1 of $mib MiB: run" pie_by_default --pages thp
        launcher=
        attached "$1 of $mib MiB" thp 0
    done
}

# group_of VERSION CONTROLLER: mounts the hierarchy, and makes the group $GROUP with the controller. no_group removes
# it.
group_of() {
    hierarchy=/tmp/cgroup-$1-$2
    mkdir -p $hierarchy
    export GROUP=$hierarchy/limited
    case $1 in
        1) mount -t cgroup -o $2 none $hierarchy 2>/dev/null && mkdir $GROUP ;;
        2) mount -t cgroup2 none $hierarchy 2>/dev/null && echo "+$2" >$hierarchy/cgroup.subtree_control && mkdir $GROUP ;;
    esac
}
no_group() {
    tries=0
    until rmdir $GROUP 2>/dev/null || [ $tries -ge 200 ]; do
        usleep 50000
        tries=$((tries + 1))
    done
    umount $hierarchy
}

# no_controller NAME: it could not be mounted, which is right if the kernel lacks it for version 1. Since Linux 6.11 the
# memory controller of version 1 is a separate option.
no_controller() {
    expected=$(awk -v name=$1 '$1 == name' /proc/cgroups)
    case $1:$(uname -r) in
        memory:5.* | memory:6.[0-9].* | memory:6.10.*) ;;
        memory:*) expected= ;;
    esac
    if [ -n "$expected" ]; then
        failed "the $1 controller of cgroup v1 is not mounted"
    else
        way "refused: no such controller"
        ok "this kernel has no $1 controller of cgroup v1"
    fi
}
