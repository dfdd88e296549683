# Threads that give memory back: `pagelift shootdowns` names who sends, and the cure.
feature "shootdowns: their sender and the cure"
start storms malloc 262144 64
pagelift shootdowns -p $pid --for 4 >/tmp/said 2>&1
kill $pid
exec 3>&-
wait $pid
[ "$(tail -n 1 /tmp/out)" = "all right" ] || failed "shootdowns: the program ended with $(tail -n 1 /tmp/out)"
name="shootdowns on $(grep -c '^processor' /proc/cpuinfo) CPUs"
for text in "by the tracepoint tlb:tlb_flush" "glibc 2.* gives free pages back by madvise" "cure: GLIBC_TUNABLES=" \
    "grow_and_shrink"; do
    if grep -q "$text" /tmp/said; then ok "$name: $text"; else failed "$name: no $text in $(tr '\n' '|' </tmp/said)"; fi
done
