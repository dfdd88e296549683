# `pagelift stat` without a PMU, as under emulation: pages in use by accessed marks instead of page walks.
feature "stat: without a PMU, by accessed marks"
start uses_known_pages 3000
# The kernel clears the marks but not the TLB, and an emulated TLB keeps its entries until another process gets the CPU:
# on each CPU one does, several times a second.
switchers=
for cpu in 1 2; do
    taskset $cpu sh -c 'while :; do usleep 50000; done' &
    switchers="$switchers $!"
done
pagelift stat --for 1 -p $pid >/tmp/said 2>&1
status=$?
kill $switchers
wait $switchers 2>/dev/null
stop "stat: the program"
[ $? = 0 ] || failed "stat: the program failed: $(cat /tmp/out)"
if [ $status = 0 ] && grep -q "^Page walks: not counted: .* shows no PMU.*fix:" /tmp/said; then
    ok "stat: why walks are not counted"
else
    failed "stat: status $status, $(tr '\n' '|' </tmp/said)"
fi
# The program uses 3000 pages of each kind, and as many are idle; an emulated CPU may not reach all in half a second.
for part in "code" "heap (mmap), bss"; do
    used=$(grep "^  $part " /tmp/said | awk '{ gsub(",", "", $NF); print $NF }')
    if [ "${used:-0}" -ge 500 ] && [ "$used" -le 3200 ]; then
        way "accessed marks"
        ok "stat: $part: $used pages in use"
    else
        failed "stat: $part: ${used:-none} of 3000 pages: $(tr '\n' '|' </tmp/said)"
    fi
done
