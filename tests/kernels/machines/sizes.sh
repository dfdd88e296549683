# Pool pages of a size other than the usual: a bss on them.
# kernel_page_sum PID KIB: KiB of memory on pages of this size, shared ones included (see smaps_sum).
kernel_page_sum() {
    awk -v kib=$2 '$1 == "KernelPageSize:" { here = $2 == kib } $1 ~ /^(Private|Shared)_Hugetlb:/ && here { sum += $2 } END { print sum + 0 }' \
        /proc/$1/smaps
}

# on_pages_of KIB NAME LEAST PROGRAM OPTIONS...: the same output, at least LEAST KiB on pages of the size, all returned
# at the end.
on_pages_of() {
    kib=$1 name=$2 least=$3 program=$4
    shift 4
    counter=/sys/kernel/mm/hugepages/hugepages-${kib}kB/free_hugepages
    before=$(cat $counter)
    plain_of $program
    start pagelift run "$@" -- $program
    found=$(kernel_page_sum $pid $kib)
    stop "$name"
    echo "status $?" >>/tmp/out
    tries=0
    until [ "$(cat $counter)" = $before ] || [ $tries -ge 200 ]; do
        usleep 50000
        tries=$((tries + 1))
    done
    if ! cmp -s $plain /tmp/out; then
        failed "$name: it printed $(tail -n 3 /tmp/out | tr '\n' ' '), plain $(tail -n 3 $plain | tr '\n' ' ')"
    elif [ "$found" -lt $least ] || [ "$(cat $counter)" != $before ]; then
        failed "$name: $found KiB, $(cat $counter) of $before pages are free; $(tr '\n' ' ' </tmp/err)"
    else
        way "hugetlb"
        ok "$name ($found KiB)"
    fi
}

# in_words KIB
in_words() {
    if [ $1 -ge $((M * M)) ]; then echo "$(($1 / M / M)) GiB"; elif [ $1 -ge $M ]; then echo "$(($1 / M)) MiB"; else echo "$1 KiB"; fi
}

# size_is_used KIB: by a bss on pages of this size.
size_is_used() {
    words=$(in_words $1)
    feature "run: pool pages of $words"
    on_pages_of $1 "$words: bss" $1 has_a_bss_of_$1 --pages hugetlb --writable-pages hugetlb --page-size ${1}K --lift bss
}
