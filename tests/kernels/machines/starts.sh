# Whoever lifts a start is killed at moments that reach all of what one takes: the program starts as if nobody had been there.
milliseconds() { awk '{ print int($1 * 1000) }' /proc/uptime; }

# launch PROGRAM: starts it lifted, without waiting for anything; $pid is it, descriptor 3 its input.
launch() {
    rm -f /tmp/in
    mkfifo /tmp/in
    : >/tmp/out
    pagelift run -q --pages thp -- $1 </tmp/in >/tmp/out 2>/tmp/err &
    pid=$!
    exec 3<>/tmp/in
}

# helpers_killed PROGRAM ROUNDS
helpers_killed() {
    plain_output $1 >/tmp/plain
    began=$(milliseconds)
    start pagelift run -q --pages thp -- $1
    took=$(($(milliseconds) - began + 1))
    stop "$1: not killed"
    round=0 killed=0 differed=0
    while [ $round -lt $2 ]; do
        launch $1
        tries=0 helper=0
        # No helper is met where the start is over before.
        until [ "${helper:-0}" != 0 ] || [ $tries -ge 500 ] || ended $pid || grep -q '^ready' /tmp/out; do
            helper=$(awk '$1 == "TracerPid:" { print $2 }' /proc/$pid/status 2>/dev/null)
            tries=$((tries + 1))
        done
        usleep $((round * 7919 % took * 500))
        [ "${helper:-0}" = 0 ] || ! kill -9 $helper 2>/dev/null || killed=$((killed + 1))
        stop "$1: helper killed in round $round"
        echo "status $?" >>/tmp/out
        cmp -s /tmp/plain /tmp/out || differed=$((differed + 1))
        round=$((round + 1))
    done
    if [ $differed != 0 ]; then
        failed "$1: $differed of $round starts differ: $(tail -n 3 /tmp/out | tr '\n' ' '), plain $(tail -n 3 /tmp/plain | tr '\n' ' ')"
    elif [ $killed -lt 2 ]; then
        failed "$1: only $killed of $round helpers were killed"
    else
        ok "$1: $killed of $round helpers were killed, within $took ms"
    fi
}

feature "run: helpers killed at any moment of a start"
helpers_killed pie_by_default 6
helpers_killed static_pie 6
