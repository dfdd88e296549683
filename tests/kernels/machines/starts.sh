# The lifter of a start is killed at moments spread over a whole lift: the program starts unharmed.
milliseconds() { awk '{ print int($1 * 1000) }' /proc/uptime; }

# launch PROGRAM: starts it lifted, without waiting; $pid is its process, descriptor 3 its input.
launch() {
    rm -f /tmp/in
    mkfifo /tmp/in
    : >/tmp/out
    pagelift run -q --pages thp -- $1 </tmp/in >/tmp/out 2>/tmp/err &
    pid=$!
    exec 3<>/tmp/in
}

# runs PID: false once it has ended; $tracer is its tracer, or 0. Starts no program, because a helper may be gone before
# an emulated CPU has started one.
runs() {
    tracer=0 state=
    while read -r key value rest; do
        case $key in
            State:) state=$value ;;
            TracerPid:) tracer=$value && break ;;
        esac
    done 2>/dev/null </proc/$1/status
    # At the end of a tracing, the kernel shows the parent for a moment.
    [ "$tracer" = $$ ] && tracer=0
    [ -n "$state" ] && [ "$state" != Z ] && [ "$state" != X ]
}

# helpers_killed PROGRAM LEAST: kills helpers until LEAST of them have died, each some time after it is found. If a
# helper is gone by then, the times become shorter.
helpers_killed() {
    plain_of $1
    began=$(milliseconds)
    start pagelift run -q --pages thp -- $1
    took=$(($(milliseconds) - began + 1))
    stop "$1: not killed"
    round=0 killed=0 differed=0 longest=$((took * 500)) moments=
    while [ $killed -lt $2 ] && [ $round -lt 40 ]; do
        launch $1
        tries=0
        # No helper is found if the start is over before.
        while runs $pid && [ $tracer = 0 ] && [ ! -s /tmp/out ] && [ $tries -lt 20000 ]; do
            tries=$((tries + 1))
        done
        helper=$tracer
        while_us=$((longest * (round % 4) / 3))
        [ $while_us = 0 ] || usleep $while_us
        if [ $helper != 0 ] && runs $helper && kill -9 $helper 2>/dev/null; then
            killed=$((killed + 1)) moments="$moments $((while_us / 1000))"
        else
            longest=$((longest / 2))
        fi
        stop "$1: helper killed in round $round"
        echo "status $?" >>/tmp/out
        cmp -s $plain /tmp/out || differed=$((differed + 1))
        round=$((round + 1))
    done
    if [ $differed != 0 ]; then
        failed "$1: $differed of $round starts differ: $(tail -n 3 /tmp/out | tr '\n' ' '), plain $(tail -n 3 $plain | tr '\n' ' ')"
    elif [ $killed -lt $2 ]; then
        failed "$1: only $killed helpers of $round starts were killed"
    else
        ok "$1: $killed helpers of $round starts were killed, at$moments ms of $took"
    fi
}

feature "run: helpers killed at any moment of a start"
helpers_killed pie_by_default 5
helpers_killed static_pie 5
