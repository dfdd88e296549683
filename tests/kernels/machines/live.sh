# Running programs are lifted and restored, and the lifter is killed at any moment.
echo "kernel $(uname -r) on $(uname -m)"
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
M=1024
pool 30

# finish NAME PATTERN: asks it to end; its last line must match.
finish() {
    stop "$1"
    status=$?
    case "$status $(tail -n 1 /tmp/out)" in
        "0 "$2) ok "$1" ;;
        *) failed "$1: status $status, $(tail -n 5 /tmp/out | tr '\n' ' ')" ;;
    esac
}

# lift PAGES: lifts the program and checks the result; unlift restores it. Both count repeated attempts, which are
# needed if no thread could be borrowed.
lift() {
    tries=0
    until pagelift attach --pages $1 $pid 2>/tmp/err; do
        tries=$((tries + 1)) again=$((again + 1))
        [ $tries -lt 5 ] || { failed "attach: $(tr '\n' ' ' </tmp/err)"; return 1; }
    done
    # At least half of the executable's code and constants, 6 MiB each. A child that the program has at this moment
    # shares the pool's pages.
    found=$(awk '/^(AnonHugePages|Private_Hugetlb|Shared_Hugetlb):/ { sum += $2 } END { print sum + 0 }' /proc/$pid/smaps)
    [ "$found" -ge $((6 * M)) ] || { failed "attach --pages $1: $found KiB; $(tr '\n' ' ' </tmp/err)"; return 1; }
    [ "$(grep -c ' rwxp' /proc/$pid/maps)" = 0 ] || { failed "attach: writable and executable"; return 1; }
}
unlift() {
    tries=0
    until pagelift detach $pid 2>/tmp/err; do
        tries=$((tries + 1)) again=$((again + 1))
        [ $tries -lt 5 ] || { failed "detach: $(tr '\n' ' ' </tmp/err)"; return 1; }
    done
}

# Before Linux 5.16 pool pages cannot be moved, so none get into a running program. Before 5.13 a computing thread may
# be in a restartable sequence without a sign, so it cannot be borrowed if the C library registers one.
case $(uname -r) in
    5.10.*) sources="thp" lifts=2 shows_sequences=false ;;
    *) sources="thp hugetlb" lifts=1 shows_sequences=true ;;
esac

# not_lifted REASON PAGES: attach prints this reason, and lifts nothing.
not_lifted() {
    pagelift attach -v --pages $2 --lift text,rodata $pid >/tmp/said 2>&1
    found=$(smaps_sum $pid "AnonHugePages|Private_Hugetlb")
    if [ "$found" = 0 ] && grep -q "$1" /tmp/said; then
        way "$2 refused: $1"
        ok "attach --pages $2 says why not"
    else
        failed "attach --pages $2: $found KiB, $(tr '\n' ' ' </tmp/said)"
    fi
}

seconds() { awk '{ print int($1) }' /proc/uptime; }

# twice NAME: lifts the program to each source and restores it, $lifts times. $twice_took is the time in seconds.
twice_took=0
twice() {
    round=0 again=0 begun=$(seconds)
    while [ $round -lt $lifts ]; do
        for source in $sources; do
            lift $source && way $source && unlift || break 2
        done
        round=$((round + 1))
    done
    twice_took=$(($(seconds) - begun))
    [ $round = $lifts ] && ok "$1: lifted from $sources, told again $again times; $(tr '\n' ' ' </tmp/err)"
}

# at_least SECONDS: so long, or five times as long as the last two lifts took: the host may be slow, or busy with other
# machines.
at_least() {
    if [ $((5 * twice_took)) -gt $1 ]; then echo $((5 * twice_took)); else echo $1; fi
}

# signalled N CALL: each of N signals that arrive while the only thread is held ends its call. Before the call, a
# signal's handler would run and the call begin afterwards.
signalled() {
    case $2 in
        epoll_wait) its_number=232 ;;
        pause) its_number=34 ;;
    esac
    round=0 sent=0
    while [ $sent -lt $1 ] && [ $round -lt 20 ]; do
        tries=0
        until grep -q "^$its_number " /proc/$pid/syscall; do
            tries=$((tries + 1))
            [ $tries -lt 400 ] || { failed "$2: it is not called: $(cat /proc/$pid/syscall)"; return; }
            usleep 50000
        done
        what="attach -q --pages thp"
        [ $((round % 2)) = 1 ] && what="detach -q"
        pagelift $what $pid 2>/dev/null &
        lifter=$!
        while read -r number name state rest </proc/$lifter/stat && [ "$state" != Z ]; do
            read -r number name state rest </proc/$pid/stat
            [ "$state" = t ] && kill -USR1 $pid && sent=$((sent + 1)) && break
        done
        wait $lifter
        tries=0
        until [ "$(grep -c "$2 ended: -1, Interrupted" /tmp/out)" = $sent ]; do
            tries=$((tries + 1))
            [ $tries -lt 400 ] || { failed "$2: signal $sent has not ended it"; return; }
            usleep 50000
        done
        round=$((round + 1))
    done
    [ $sent = $1 ] && ok "$2: $sent signals while it was held" || failed "$2: only $sent signals came while it was held"
}

# kills N SECONDS: begins lifts and kills them after times spread over the duration of one: N of them, and more until
# five were killed or the time is over. If a lift has ended before its kill, the times become shorter.
kills() {
    round=0 killed=0 end=$(($(seconds) + $2))
    began=$(awk '{ print int($1 * 1000) }' /proc/uptime)
    again=0
    lift thp && unlift
    took=$(awk -v began=$began '{ print int(($1 * 1000 - began) / 2) + 1 }' /proc/uptime)
    longest=$took
    while { [ $round -lt $1 ] || [ $killed -lt 5 ]; } && [ $(seconds) -lt $end ]; do
        what="attach -q --pages thp"
        [ $((round % 3)) = 2 ] && what="detach -q"
        pagelift $what $pid 2>/dev/null &
        lifter=$!
        usleep $((round * 7919 % longest * 1000))
        kill -9 $lifter 2>/dev/null
        wait $lifter 2>/dev/null
        if [ $? = 137 ]; then killed=$((killed + 1)); else longest=$((longest * 2 / 3 + 1)); fi
        ended $pid && { failed "it has ended in round $round"; return; }
        round=$((round + 1))
    done
    [ $killed -ge 5 ] && ok "$killed of $round lifts were killed within $took ms" || failed "only $killed of $round lifts were killed"
    lift thp && unlift && ok "lifted after all that" || failed "not lifted after all that"
}

# Both limits are reported before any thread is stopped; with `auto`, the next source is used.
if [ "$sources" = thp ]; then
    feature "attach and detach"
    start waits_once 20
    not_lifted "cannot be moved into a program that runs on this kernel" hugetlb
    again=0
    lift auto && [ "$(smaps_sum $pid Private_Hugetlb)" = 0 ] && unlift && ok "attach --pages auto goes on to the next source"
    finish "one thread that is not lifted to the pool" "all right, woken in time"
fi

# AArch64 kernels that do not show the first argument of an ended call (see LIMITS.md): it is not repeated.
case $(uname -m)-$(uname -r) in
    aarch64-[1-5].* | aarch64-6.[0-9].* | aarch64-6.1[01].*) ;;
    aarch64-*) export FORGIVE_EINTR=1 ;;
esac

# An EINTR caused by the lift, see README.md, counts as two.
unharmed="[0-4] faults"
feature "attach and detach"
start sleeps_in_many_calls
twice "threads in many calls"
finish "threads in many calls" "$unharmed"

start is_woken_by_signals
twice "threads that signals wake"
# It ends only if no signal was lost. A thread that is always awake can see an EINTR caused by the lift, see README.md.
finish "threads that signals wake" "* faults"

# AArch64: see LIMITS.md.
if [ $(uname -m) = x86_64 ]; then
    for call in epoll_wait pause; do
        start waits_for_signals $call
        signalled 3 $call
        kill -TERM $pid
        finish "$call, with signals while it is held" "the end"
    done
fi

start waits_beside_children
twice "threads beside children"
finish "threads beside children" "[0-2] faults"

start waits_once input
twice "one thread that waits for events"
finish "one thread that waits for events" "all right, woken in time"

# The test waits for all this time, whether it was needed or not: it is measured by lifts of the same program.
waits_once_took=$twice_took
start waits_once $(at_least 30)
twice "one thread that sleeps"
finish "one thread that sleeps" "all right, woken in time"

start has_a_kernel_worker
if $shows_sequences; then
    twice "a thread that computes"
else
    not_lifted "restartable sequence" thp
fi
finish "a thread that computes" "*read x by 1, transparent huge pages off"

# A lift may be killed between a stop and its compensation.
feature "attach and detach, killed at any moment"
export FORGIVE_EINTR=1
start sleeps_in_many_calls
kills 12 240
finish "threads in many calls, lifts killed" "$unharmed"

twice_took=$waits_once_took
time_to_kill=$(at_least 25)
# A last lift may have to be repeated.
start waits_once $((time_to_kill + $(at_least 25)))
kills 8 $time_to_kill
finish "one thread that sleeps, lifts killed" "all right, woken in time"

[ "$(free_pages)" = 30 ] && ok "no page of the pool is lost" || failed "$(free_pages) of 30 pages are free at the end"
