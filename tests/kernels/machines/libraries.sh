# Programs with other C libraries: /libraries/NAME holds a library, and /libc/current is the one whose dynamic linker
# the programs for glibc name.
feature_of_each() {
    pool 40
    feature "run: pool pages"
    check "$1: hugetlb: code and constants" Private_Hugetlb $((10 * M)) $((14 * M)) pie_by_default --pages hugetlb --lift text,rodata
    feature "run: transparent huge pages"
    check "$1: thp: everything" AnonHugePages $((16 * M)) $((30 * M)) pie_by_default --pages thp
    check "$1: thp: fork" AnonHugePages $((8 * M)) $any fork_and_write --pages thp
    pool 0

    attach_and_detach "$1"
    preloaded "$1"

    # 64 MiB in small blocks and a large one; memory that no setting and no preloaded heap reaches is collapsed after a
    # while.
    feature "heap on transparent huge pages"
    start pagelift run --heap=thp -- holds_a_running_heap
    tries=0
    until lifted=$(smaps_sum $pid AnonHugePages) && [ $lifted -ge $((40 * M)) ] || [ $tries -ge 1200 ]; do
        usleep 100000
        tries=$((tries + 1))
    done
    stop "$1: heap"
    if [ $? = 0 ] && [ $lifted -ge $((40 * M)) ]; then
        case $(cat /tmp/err) in
            *"collapsed from outside"*) way collapsed ;;
            *"a preloaded mimalloc"*) way preloaded ;;
            *) way "its own setting" ;;
        esac
        ok "$1: heap ($lifted KiB)"
    else
        failed "$1: heap: $lifted KiB; $(tr '\n' ' ' </tmp/err)"
    fi
}

usual_path=$PATH
mkdir /libc
for folder in /libraries/*; do
    PATH=/programs/glibc:$usual_path
    rm -f /libc/current
    ln -s $folder /libc/current
    rm -rf /tmp/plain
    case $folder in
        */musl)
            PATH=/programs/musl:$usual_path
            libc="musl $(/lib/ld-musl-x86_64.so.1 2>&1 | awk '$1 == "Version" { print $2 }')"
            ;;
        *) libc=$(/libc/current/ld-linux-x86-64.so.2 /libc/current/libc.so.6 | version_of_glibc) ;;
    esac
    machine "$libc" $own_root
    feature_of_each "$libc"
done
PATH=$usual_path
machine "$own_libc" $own_root
