# Memory of running programs besides objects, lifted from outside: shared memory of each kind and in each mode of
# shmem_enabled, anonymous and executable memory, mapped data files. The programs check their contents at their end.
echo "kernel $(uname -r) on $(uname -m)"
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
for module in /modules/*; do
    [ ! -e $module ] || insmod $module || failed "loading $module"
done
case $(uname -r) in
    5.*) collapses=false drops=false ;;
    6.1.* | 6.12.*) collapses=true drops=false ;; # page tables of ordinary pages are kept until 6.18
    *) collapses=true drops=true ;;
esac
block=$(($(cat /sys/kernel/mm/transparent_hugepage/hpage_pmd_size) / 1024))
shmem=/sys/kernel/mm/transparent_hugepage/shmem_enabled
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm

# lift KIND: lifts memory of $pid; sets $said.
lift() {
    pagelift attach --lift $1 $pid >/tmp/said 2>&1
    said=$(tr '\n' ' ' </tmp/said)
}

# outcome NAME FOUND LEAST TEXT: the program ends well, and has at least LEAST KiB on huge pages, or, if LEAST is 0, none
# and this text as the reason.
outcome() {
    if ! stop "$1"; then
        failed "$1: the program failed: $(tail -n 3 /tmp/out /tmp/err); $said"
    elif [ $3 -gt 0 ] && [ "$2" -ge $3 ]; then
        way lifted
        ok "$1 ($2 KiB; $said)"
    elif [ $3 = 0 ] && [ "$2" = 0 ] && grep -q "$4" /tmp/said; then
        way "refused: $(grep -o "$4" /tmp/said | head -n 1)"
        ok "$1 ($said)"
    else
        failed "$1: $2 KiB, due are $3; $said"
    fi
}

# in_place NAME KIND FIELD PROGRAM WORDS...: all of the memory is lifted, or the kernel is too old.
in_place() {
    name=$1 kind=$2 field=$3
    shift 3
    start "$@"
    lift $kind
    least=0
    ! $collapses || least=$((16 * block))
    outcome "$name" $(smaps_sum $pid $field) $least "collapses memory in place from 6.1 on"
}

feature "attach: shared memory"
for kind in anonymous memfd file system-v; do
    in_place "shared: $kind" shared ShmemPmdMapped holds_shared_memory $kind full
done
if $collapses; then
    for mode in never advise within_size always force deny; do
        echo $mode >$shmem
        start holds_shared_memory memfd full
        before=$(smaps_sum $pid ShmemPmdMapped)
        lift shared
        least=$((16 * block))
        [ $mode != deny ] || least=0
        outcome "shared: shmem_enabled is $mode ($before KiB before)" $(smaps_sum $pid ShmemPmdMapped) $least "deny"
    done
    echo never >$shmem
    start holds_shared_memory memfd restless
    for try in 1 2 3 4 5; do lift shared; done
    found=$(smaps_sum $pid ShmemPmdMapped)
    outcome "shared: emptied and truncated meanwhile" $found 1
fi

feature "attach: anonymous and generated memory"
in_place "anonymous memory" anon AnonHugePages holds_private_memory anon full
in_place "generated code" jit AnonHugePages holds_private_memory jit full

# A program with two mappings of a file that can be huge.
feature "attach: mapped data files"
mkdir -p /mnt/data
if mount -t xfs /dev/vda /mnt/data; then
    awk -v bytes=$((6 * block * 1024)) 'BEGIN { for (n = 0; n < bytes / 16; n++) printf "%015d\n", n }' >/mnt/data/file
    sync
    case $(uname -r) in
        5.*) ;; # no large folios
        *)
            pagelift cache prepare /mnt/data/file >/tmp/said 2>&1 || failed "data files: not prepared: $(cat /tmp/said)"
            ;;
    esac
    start maps_data /mnt/data/file
    # Kernels map what they find in huge folios by themselves, some less than others.
    before=$(smaps_sum $pid FilePmdMapped)
    lift files
    found=$(smaps_sum $pid FilePmdMapped)
    least=0
    ! $drops || least=$((12 * block))
    $drops || found=$((found - before))
    outcome "data files ($before KiB before)" $found $least "until 6.18\|huge folios"
else
    failed "data files: not mounted"
fi
