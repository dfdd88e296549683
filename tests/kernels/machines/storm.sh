# Threads that give memory back, on two CPUs and on four: `pagelift shootdowns` names who sends, and the cure. Started with
# it by `run --calm` they send at most a twentieth, counted by the kernel's events.

# Bytes that the program takes and gives back at a time.
block=262144

# watched NAME SECONDS COMMAND...: what shootdowns says of a storm goes to /tmp/said, and how many a second the machine sent to
# $sent.
watched() {
    name=$1 time=$2
    shift 2
    start "$@" malloc $block 64
    pagelift shootdowns -p $pid --for $time >/tmp/said 2>&1
    sent=$(sed -n 's/^The whole machine: sent \([0-9,.]*\)\/s.*/\1/p' /tmp/said | tr -d ,)
    kill $pid
    exec 3>&-
    wait $pid
    [ "$(tail -n 1 /tmp/out)" = "all right" ] || failed "$name: the program ended with $(tail -n 1 /tmp/out)"
}

# Measured times: 5.10 and 6.1 have no event csd:*, later kernels distinguish waiting from interruptions. Their rows
# have a share of the calls, at least one share of these two times (a short window may contain no complete wait), and
# the part of all.
case $(uname -r) in
    5.10.* | 6.1.*) times="the time of receivers is that of all function calls between CPUs" ;;
    *) times='storms .*[0-9] % .*[0-9] % .*[0-9] %' ;;
esac
# Arm CPUs send shootdowns by hardware broadcasts, which are not recorded: the report names this, counts the calls
# instead, and gives the same cure.
not_observable() {
    # Fewer than a hundred calls each second need no cure. A busy host makes 160 with the usual blocks, and twice as many with these.
    block=65536
    for time in 2 5 10; do
        watched "shootdowns on $(uname -m)" $time storms
        grep -q "cure: GLIBC_TUNABLES=" /tmp/said && break
    done
    for text in "not shootdowns themselves" "aarch64 kernels never record the tracepoint tlb:tlb_flush" \
        "glibc 2.* gives free pages back by madvise" "cure: GLIBC_TUNABLES=" "grow_and_shrink"; do
        if grep -q "$text" /tmp/said; then ok "shootdowns: $text"; else failed "shootdowns: no $text in $(tr '\n' '|' </tmp/said)"; fi
    done
    grep -q "The whole machine: sent" /tmp/said && failed "shootdowns that nobody counts: $(tr '\n' '|' </tmp/said)"
    way "calls, not shootdowns"
}
storms_on() {
    while [ "$(grep -c '^processor' /proc/cpuinfo)" -lt $1 ]; do
        next=$(grep -c '^processor' /proc/cpuinfo)
        echo 1 >/sys/devices/system/cpu/cpu$next/online || break
    done
    name="shootdowns on $(grep -c '^processor' /proc/cpuinfo) CPUs"
    # A slow host makes few events in a short time.
    for time in 2 5 10; do
        watched "$name" $time storms
        grep -q "$times" /tmp/said && break
    done
    for text in "by the tracepoint tlb:tlb_flush" "glibc 2.* gives free pages back by madvise" "cure: GLIBC_TUNABLES=" \
        "grow_and_shrink" "$times"; do
        if grep -q "$text" /tmp/said; then ok "$name: $text"; else failed "$name: no $text in $(tr '\n' '|' </tmp/said)"; fi
    done
    plain=$sent
    watched "$name, calm" 2 pagelift run --quiet --calm -- storms
    if awk -v plain="$plain" -v calm="$sent" 'BEGIN { exit !(plain > 0 && calm != "" && 20 * calm <= plain) }'; then
        ok "$name: $plain/s without the cure, $sent/s with it"
    else
        failed "$name: $plain/s without the cure, $sent/s with it: $(tr '\n' '|' </tmp/said)"
    fi
}
feature "shootdowns: their sender and the cure"
case $(uname -m) in
    aarch64) not_observable ;;
    *)
        if $makes_all_checks; then cpus_of_storms="2 4"; else cpus_of_storms=2; fi
        for cpus in $cpus_of_storms; do storms_on $cpus; done
        ;;
esac
