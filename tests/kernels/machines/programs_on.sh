# Programs on each file system, all in one boot: a start, a lift of a running program, a lift from inside, and an image
# of the program's file, or the reason why there is none. Each file system has separate rows in docs/COMPATIBILITY.md.
M=1024
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
usual_path=$PATH
any_source="Private_Hugetlb|AnonHugePages|FilePmdMapped|ShmemPmdMapped"

# disk_of TYPE: mounts the disk that has this file system, unless it is mounted already; $files is its folder.
disk_of() {
    files=/mnt/$1
    grep -q " $files " /proc/mounts && return
    mkdir -p $files
    for disk in /dev/vd?; do
        mount -t $1 $disk $files 2>/dev/null && return
    done
    failed "$1: no disk has it"
    return 1
}
# mounted_by TYPE OPTIONS
mounted_by() {
    files=/mnt/programs_on_$1
    mkdir -p $files
    mount -t $1 $2 none $files || { failed "$1: not mounted"; return 1; }
}

# imaged TYPE: the program runs from an image of its file; if none is possible, the reason is known.
imaged() {
    feature "run: shared image of the file"
    rm -rf /tmp/refused
    pagelift image add $files/pie_by_default >/tmp/said 2>&1
    if [ $? = 0 ]; then
        check "$1: image" ShmemPmdMapped $((8 * M)) $any pie_by_default --pages image --lift text,rodata
        pagelift image remove --force $files/pie_by_default >/tmp/said 2>&1 || failed "$1: image remove: $(cat /tmp/said)"
        return
    fi
    for reason in "does not tell its file system from another one" "does not give a changed file another time of change"; do
        if grep -q "$reason" /tmp/said; then
            check "$1: no image" ShmemPmdMapped 0 0 pie_by_default --pages image --lift text,rodata
            way "refused: $reason"
            return
        fi
    done
    failed "$1: image add: $(tr '\n' '|' </tmp/said)"
}

# programs_on TYPE: programs copied to $files are lifted in every way.
programs_on() {
    machine "$own_libc" $1
    cp /bin/pie_by_default /bin/fixed_address_executable $files || { failed "$1: not copied"; return; }
    sync
    PATH=$files:$usual_path
    pool 20
    feature "run: pool pages"
    check "$1: hugetlb" Private_Hugetlb $((10 * M)) $((14 * M)) pie_by_default --pages hugetlb --lift text,rodata
    feature "run: transparent huge pages"
    check "$1: thp" AnonHugePages $((8 * M)) $any pie_by_default --pages thp
    check "$1: thp, fixed address" AnonHugePages $((8 * M)) $any fixed_address_executable --pages thp
    feature "run: the source that auto takes"
    check "$1: auto" "$any_source" $((8 * M)) $any fixed_address_executable
    attach_and_detach "$1"
    preloaded "$1"
    pool 0
    imaged $1
    PATH=$usual_path
}

[ -d /store ] || pagelift image setup --store /store --size 128M >/tmp/said 2>&1 || failed "no store: $(cat /tmp/said)"
export PAGELIFT_STORE=/store
for type in ext4 xfs btrfs; do disk_of $type && programs_on $type; done
mounted_by tmpfs "-o size=64m" && programs_on tmpfs
mkdir -p /mnt/ext4/upper_files /mnt/ext4/work_files
mounted_by overlay "-o lowerdir=/mnt/xfs,upperdir=/mnt/ext4/upper_files,workdir=/mnt/ext4/work_files" && programs_on overlay
machine "$own_libc" $own_root
