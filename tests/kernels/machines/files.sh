# Files in huge folios, on the file systems of this kernel: the programs' own files are prepared, shown at a start, in a
# running program, and from inside; each impossible case has its reason. `scripts/compatibility` makes the table of
# docs/guides/files.md from features named `file on FILE SYSTEM: COLUMN`, and their ways.
echo "kernel $(uname -r) on $(uname -m)"
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
for module in /modules/*; do
    insmod $module || failed "loading $module"
done
pagelift image setup --store /store --size 128M >/tmp/said 2>&1 || failed "no store: $(cat /tmp/said)"
M=1024
least=$((8 * M)) # of seven million bytes of code and as many of constants
release=$(uname -r)
case $release in
    6.1.* | 6.12.*) collapses=false ;;
    *) collapses=true ;;
esac
case $release in
    # PAGEMAP_SCAN exists since 6.7; before, PR_SET_THP_DISABLE has no effect on mapped files.
    6.1.*) library_looks=false disabled_is_small=false ;;
    *) library_looks=true disabled_is_small=true ;;
esac

# mounted NAME TYPE DEVICE: mounts a file system and copies the programs to it; $files is its folder. Read-only file
# systems contain them already.
mounted() {
    name=$1 files=/opt/$1
    mkdir -p $files
    mount -t $2 $3 $files || { failed "$name: not mounted"; return 1; }
    [ -e $files/fixed_address_executable ] ||
        cp /bin/fixed_address_executable /bin/pie_by_default $files || { failed "$name: not copied"; return 1; }
    # By itself, a lift makes images only of programs below /opt and the like that were written a day ago.
    touch -d '2020-01-01 00:00' $files/fixed_address_executable $files/pie_by_default 2>/dev/null
    sync
    PATH=$files:/bin
}

# small FILE: reads it into small folios.
small() {
    sync
    echo 1 >/proc/sys/vm/drop_caches
    cat $1 >/dev/null
}

# huge FILE: its bytes in huge folios, and the bytes that could be.
huge() { pagelift cache status --json $1 | awk '/"(of|huge)":/ && !done[$1]++ { gsub(/[",:]/, ""); print $1 "=" $2 }'; }

# says NAME TEXT COMMAND...: the command fails and prints this text.
says() {
    name=$1 text=$2
    shift 2
    if "$@" >/tmp/said 2>&1; then
        failed "$name: it does not fail: $(cat /tmp/said)"
    elif grep -q "$text" /tmp/said; then
        way "refused: $text"
        ok "$name"
    else
        failed "$name: $(cat /tmp/said)"
    fi
}

# tells NAME TEXT COMMAND...: the command succeeds and prints this text.
tells() {
    name=$1 text=$2
    shift 2
    if "$@" >/tmp/said 2>&1 && grep -q "$text" /tmp/said; then
        ok "$name ($(tr '\n' ' ' </tmp/said))"
    else
        failed "$name: $(cat /tmp/said)"
    fi
}

# on_file NAME: the started program has the due amount on huge pages of its file.
on_file() {
    found=$(smaps_sum $pid FilePmdMapped)
    [ "$found" -ge $least ] && way file && ok "$1 ($found KiB)" || failed "$1: FilePmdMapped is $found KiB, due are $least; $(cat /tmp/said)"
}

ended_well() { stop "$1" && ok "$1: it ends as ever" || failed "$1: it failed; $(tail -n 3 /tmp/out /tmp/err)"; }

# started_before PROGRAM OPTIONS...: starts it until its file is prepared. A start spends at most half a second on that,
# which may not be enough on an emulated machine; the next start continues.
started_before() {
    program=$1
    shift
    for try in 1 2 3 4 5 6 7 8 9; do
        plain_output pagelift run --prepare always "$@" -- $program >/tmp/tried
        grep -q "the budget of" /tmp/tried || return
    done
}

# prepared NAME FILE: read into small folios, then prepared by the command, as `cache status` confirms.
prepared() {
    feature "file on $1: cache prepare"
    small $2
    before=$(huge $2)
    tells "$1: cache prepare" "in huge folios" pagelift cache prepare $2
    huge $2 >/tmp/after
    (
        . /tmp/after
        [ "$huge" = "$of" ] && [ "$huge" -ge $((least * M)) ] && way "$((huge / M / M)) of $((of / M / M)) MiB"
    ) && ok "$1: cache status ($(echo $before) before)" || failed "$1: cache status: $(cat /tmp/after), before $before"
}

# sources_taken NAME WORDS: the sources that `auto` uses at a start, without a store of images and then with one: at
# least one, and all among these words.
sources_taken() {
    name=$1 due=$2
    for variable in PAGELIFT_STORE=/none PAGELIFT_STORE=/store; do
        what="sources of auto"
        [ $variable = PAGELIFT_STORE=/none ] || what="$what with a store"
        feature "file on $name: $what"
        rm -f /tmp/report
        plain_output env $variable pagelift run -v --report /tmp/report --lift text,rodata -- fixed_address_executable >/tmp/said
        taken=$(awk -F '"' '$2 == "source" && !seen[$4]++ { print $4 }' /tmp/report)
        others=$taken
        for source in $taken; do way $source; done
        for word in $due; do others=$(echo "$others" | grep -vx $word); done
        [ -n "$taken" ] && [ -z "$others" ] && ok "$name: $what ($(grep -e ' MiB on ' -e 'no image' /tmp/said | tr '\n' ' '))" ||
            failed "$name: $what: due is $due, found $taken; $(cat /tmp/said)"
    done
}

# replaced NAME: the file of a running program that can be neither evicted nor collapsed is replaced by an identical
# copy.
replaced() {
    file=$files/replaced_executable
    cp $files/fixed_address_executable $file
    small $file
    start $file
    first=$pid
    metadata_of_a_file hold $file >/tmp/held &
    holder=$!
    until grep -q ready /tmp/held || ended $holder; do usleep 50000; done
    feature "file on $1: hard links"
    busybox ln $file $files/link
    says "$1: a file with two names is not replaced" "found 2 hard links" pagelift cache prepare --replace $file
    rm $files/link
    metadata_of_a_file give $file || failed "$1: no metadata"
    # After this its time of last use is newer than its time of change, so a further read does not change it (relatime).
    cat $file >/dev/null
    metadata_of_a_file show $file >/tmp/before
    feature "file on $1: cache prepare --replace"
    tells "$1: cache prepare --replace" "replaced; restart these processes, which use the old file:.* $first" pagelift cache prepare --replace $file
    metadata_of_a_file show $file >/tmp/after
    grep -q '^security.capability' /tmp/before && cmp -s /tmp/before /tmp/after && cmp -s $file $files/fixed_address_executable &&
        ok "$1: the copy is the same ($(tr '\n' ' ' </tmp/after))" ||
        failed "$1: the copy differs: $(cat /tmp/after), before $(cat /tmp/before)"
    kill $holder
    huge $file >/tmp/after
    . /tmp/after
    [ "$huge" = "$of" ] && [ "$huge" -ge $((least * M)) ] && way "$((huge / M / M)) of $((of / M / M)) MiB" &&
        ok "$1: the copy lies in huge folios" || failed "$1: the copy: $(cat /tmp/after)"
    ended_well "$1: what has the old file"
    rm $file
}

# laid_out NAME: plain starts of a program in another layout are on huge pages of its file, and the layout can be undone.
laid_out() {
    feature "file on $1: align --relayout"
    file=$files/laid_out_executable
    cp $files/pie_by_default $file
    tells "$1: align --relayout" "laid out anew: huge pages for" pagelift align --relayout $file
    tells "$1: cache prepare of the new layout" "in huge folios" pagelift cache prepare $file
    start $file
    on_file "$1: a plain start in another layout"
    ended_well "$1: a plain start in another layout"
    pagelift align --undo $file >/tmp/said 2>&1 && cmp -s $file $files/pie_by_default && ok "$1: align --undo" ||
        failed "$1: align --undo: $(cat /tmp/said)"
    rm $file
}

# protected NAME: a program that fs-verity protects keeps its layout. A kernel or file system may have no fs-verity.
protected() {
    feature "file on $1: fs-verity"
    file=$files/protected_executable
    cp $files/pie_by_default $file
    sync
    if metadata_of_a_file protect $file >/tmp/said 2>&1; then
        says "$1: align --relayout of a protected file" "protected by fs-verity" pagelift align --relayout $file
        cmp -s $file $files/pie_by_default || failed "$1: the protected file differs"
    else
        way "none: $(cat /tmp/said)"
    fi
    rm $file
}

# can NAME: all features, on the file system that was mounted under this name.
can() {
    fixed=$files/fixed_address_executable
    feature "file on $1: run"
    small $fixed
    started_before fixed_address_executable --pages file --lift text,rodata
    check "$1: a start prepares the file" FilePmdMapped $least $any fixed_address_executable --prepare never --pages file --lift text,rodata
    prepared $1 $fixed
    feature "file on $1: run, any base"
    started_before pie_by_default --lift text,rodata
    check "$1: auto takes the file, any base" FilePmdMapped $least $any pie_by_default --lift text,rodata
    sources_taken $1 file
    if $library_looks; then
        feature "file on $1: --via preload"
        check "$1: from inside" FilePmdMapped $least $any fixed_address_executable --pages file --via preload --lift text,rodata
    fi

    feature "file on $1: attach, prepared"
    # The kernel maps it by ordinary pages although the file is in huge folios.
    start starts_another_with no-thp -- $fixed
    found=$(smaps_sum $pid FilePmdMapped)
    [ "$found" = 0 ] || ! $disabled_is_small || failed "$1: $found KiB are huge by themselves: this would check nothing"
    tells "$1: attach" "(file)" pagelift attach --pages file --lift text,rodata $pid
    on_file "$1: attached"
    tells "$1: detach" "of mapped files stays on huge pages" pagelift detach $pid
    ended_well "$1: after attach and detach"

    feature "file on $1: attach, small"
    # Mapped pages are not evicted; from 7.2 on they are collapsed in place.
    small $fixed
    start $fixed
    if $collapses; then
        for try in 1 2 3 4 5 6 7 8; do
            pagelift attach --pages file --lift text,rodata $pid >/tmp/tried 2>&1
            grep -q "the budget of" /tmp/tried || break
        done
        tells "$1: attach collapses what runs" "(file)" pagelift attach --pages file --lift text,rodata $pid
        on_file "$1: collapsed"
    else
        pagelift attach --pages file --lift text,rodata $pid >/tmp/said 2>&1
        grep -q "huge folios" /tmp/said && way "refused: mapped" && ok "$1: attach says why not" || failed "$1: attach: $(cat /tmp/said)"
        feature "file on $1: mapped by another"
        says "$1: mapped by another" "mapped by 1 process (fixed_address_e" pagelift cache prepare $fixed
    fi
    ended_well "$1: what ran"
}

# cannot NAME TEXT: refused with this reason, and the program runs unchanged.
cannot() {
    fixed=$files/fixed_address_executable
    small $fixed
    feature "file on $1: cache prepare"
    says "$1: cache prepare is refused" "$2" pagelift cache prepare $fixed
    feature "file on $1: run"
    check "$1: a start lifts nothing" FilePmdMapped 0 0 fixed_address_executable --pages file --lift text,rodata
    grep -q "$2" /tmp/err && way "refused: $2" && ok "$1: a start says why" || failed "$1: a start says $(cat /tmp/err)"
    # An image is possible if the kernel identifies the mount.
    sources_taken $1 "image thp"
}

case $release in
    5.10.*) ;; # no file system has large folios
    6.1.*)
        mounted xfs xfs /dev/vda && can xfs && replaced xfs && laid_out xfs
        mounted ext4 ext4 /dev/vdb && cannot ext4 "found ext4 on Linux 6.1, needed Linux 6.16"
        ;;
    6.12.*)
        mounted xfs xfs /dev/vda && can xfs && replaced xfs && laid_out xfs
        mounted erofs erofs /dev/vdb && can erofs
        mounted btrfs btrfs /dev/vdc && cannot btrfs "found the file system btrfs, which has no large folios on Linux 6.12"
        protected btrfs
        ;;
    *)
        mounted xfs xfs /dev/vda && can xfs && replaced xfs && laid_out xfs
        mounted ext4 ext4 /dev/vdb && can ext4 && replaced ext4 && laid_out ext4
        # Files of the layers are visible through the overlay.
        mkdir -p /opt/ext4/upper /opt/ext4/work
        mounted overlay overlay "none -o lowerdir=/opt/xfs,upperdir=/opt/ext4/upper,workdir=/opt/ext4/work" && can overlay
        mounted btrfs btrfs /dev/vdc && cannot btrfs "found the file system btrfs, which has no large folios on Linux 7"
        protected btrfs
        ;;
esac
