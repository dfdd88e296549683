# Shell functions for the checks in virtual machines; init scripts are appended. Busybox only.

mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
ulimit -c 0
export PAGELIFT_TEST_EMULATED=1 # for less work in some programs

# The version line of glibc, shortened: glibc 2.36 (Debian 2.36-9+deb12u14).
version_of_glibc() { sed -n '1s/.*(\(.*\)) .*version \([0-9.]*[0-9]\).*/glibc \2 (\1)/p' | sed 's/Debian GLIBC/Debian/'; }

# machine LIBC FILE_SYSTEM: the machine that the following results belong to.
machine() { echo "MACHINE $(uname -r)	$(uname -m)	$1	$2"; }
for libc in /lib/*/libc.so.6 /lib/libc.so.6; do
    [ -x $libc ] && own_libc=$($libc | version_of_glibc) && break
done
own_root=$(awk '$2 == "/" { type = $3 } END { print type }' /proc/mounts)
machine "$own_libc" $own_root

# feature WORDS: the feature that the following results show. way WORD: how the last result was reached.
feature() { echo "FEATURE $*"; }
way() { echo "WAY $*"; }
# ok, failed WORDS: the result of a check, and before it the seconds since the machine booted.
ok() { at && echo "RESULT ok $*"; }
failed() { at && echo "RESULT failed $*"; }
at() { read -r uptime idle </proc/uptime && echo "AT $uptime"; }

huge_kib=$(awk '$1 == "Hugepagesize:" { print $2 }' /proc/meminfo)
pool_file=/sys/kernel/mm/hugepages/hugepages-${huge_kib}kB/nr_hugepages

# pool N: exactly N pages in the pool, after compaction if memory is fragmented.
pool() {
    for try in 1 2 3 4 5; do
        echo "$1" >$pool_file
        [ "$(cat $pool_file)" = "$1" ] && break
        echo 3 >/proc/sys/vm/drop_caches
        echo 1 >/proc/sys/vm/compact_memory
    done
    [ "$(cat $pool_file)" = "$1" ] || failed "pool: $1 pages wanted, $(cat $pool_file) given"
}
free_pages() { awk '$1 == "HugePages_Free:" { print $2 }' /proc/meminfo; }

# settle N: waits up to ten seconds until N pages are free.
settle() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(free_pages)" = "$1" ] && return
        sleep 1
    done
}

# Fields to count if any source but the pool may be used: the initramfs is in huge folios on the newest kernels.
huge="AnonHugePages|FilePmdMapped|ShmemPmdMapped"

# smaps_sum PID FIELD: KiB of the field, or of fields with | between them, in all mappings. Private_Hugetlb includes
# Shared_Hugetlb: Linux 6.12 can report unshared pages of 64 KiB of 64-bit ARM as shared, because it takes the page of
# their 16 entries for one that page tables share (hugetlb_pmd_shared).
smaps_sum() {
    awk -v field="^($2):\$" 'BEGIN { sub(/Private_Hugetlb/, "(Private|Shared)_Hugetlb", field) }
        $1 ~ field { sum += $2 } END { print sum + 0 }' /proc/$1/smaps
}

# ended PID: true once the child has ended, waited for or not.
ended() { ! grep -q '^State:.[^Z]' /proc/$1/status 2>/dev/null; }

# plain_output PROGRAM...: what it prints and its status when it runs by itself.
plain_output() { echo go | timeout -s KILL 200 "$@" 2>&1; echo "status $?"; }

# plain_of PROGRAM: sets $plain to the file with that output. PROGRAM runs once for all its checks, since a run takes a fifth
# of a check's time.
plain_of() {
    plain=/tmp/plain/$MAPPINGS_LEFT$(command -v $1)
    [ -e $plain ] && return
    mkdir -p ${plain%/*}
    plain_output $1 >$plain
}

# start PROGRAM WORDS...: runs it in the background until it is ready; $pid is its process, descriptor 3 its input.
start() {
    rm -f /tmp/in
    mkfifo /tmp/in
    : >/tmp/out
    "$@" </tmp/in >/tmp/out 2>/tmp/err &
    pid=$!
    # Also opened for reading, which does not wait: an orphan that ends during a waiting open would interrupt it, and
    # end this shell.
    exec 3<>/tmp/in
    tries=0
    until grep -q '^ready' /tmp/out || [ $tries -ge 2400 ] || [ ! -d /proc/$pid ]; do
        usleep 50000
        tries=$((tries + 1))
    done
}

# stop NAME: asks it to end, and returns its status. A hanging program must not block the other checks.
stop() {
    echo go >&3
    exec 3>&-
    tries=0
    until [ $tries -ge 4800 ] || ended $pid; do
        usleep 50000
        tries=$((tries + 1))
    done
    ended $pid || { failed "$1: it does not end"; kill -9 $pid; }
    wait $pid
}

# check NAME FIELD LEAST MOST PROGRAM OPTIONS...: the program prints the same lifted, and has from LEAST to MOST KiB of
# this field of smaps on huge pages; no page is writable and executable; the pool is as full as before.
check() {
    name=$1 field=$2 least=$3 most=$4 program=$5
    shift 5
    command -v $program >/dev/null || return # not every program is written for every architecture
    before=$(free_pages)
    plain_of $program
    start $launcher pagelift run "$@" -- $program
    found=$(smaps_sum $pid $field 2>/dev/null)
    both=$(grep -c ' rwxp' /proc/$pid/maps 2>/dev/null)
    stop "$name"
    echo "status $?" >>/tmp/out
    said=$(tr '\n' ' ' </tmp/err)
    if ! cmp -s $plain /tmp/out; then
        failed "$name: it printed $(tail -n 3 /tmp/out | tr '\n' ' '), plain $(tail -n 3 $plain | tr '\n' ' '); $said"
    elif [ "${found:-0}" -lt $least ] || [ "${found:-0}" -gt $most ]; then
        failed "$name: $field is $found KiB, due are $least to $most; $said"
    elif [ "$both" != 0 ]; then
        failed "$name: $both mappings are writable and executable"
    elif [ "$(free_pages)" != "$before" ]; then
        failed "$name: $before pages were free, now $(free_pages)"
    else
        case $field in
            *Hugetlb) [ "$found" = 0 ] || way hugetlb ;;
            AnonHugePages) [ "$found" = 0 ] || way thp ;;
            FilePmdMapped) [ "$found" = 0 ] || way file ;;
            ShmemPmdMapped) [ "$found" = 0 ] || way image ;;
            *) [ "$found" = 0 ] || grep -oE '\((thp|file|image|hugetlb)' /tmp/err | tr -d '(' | while read -r word; do way $word; done ;;
        esac
        ok "$name ($found KiB; $said)"
    fi
}

# attach_and_detach NAME: code and constants of a running program are lifted and restored, and it ends as usual.
attach_and_detach() {
    feature "attach and detach"
    plain_of pie_by_default
    start pie_by_default
    pagelift attach --pages thp --lift text,rodata $pid 2>/tmp/err
    lifted=$(smaps_sum $pid AnonHugePages)
    pagelift detach $pid 2>>/tmp/err
    left=$(smaps_sum $pid AnonHugePages)
    stop "$1: attach and detach"
    echo "status $?" >>/tmp/out
    if cmp -s $plain /tmp/out && [ $lifted -ge $((8 * 1024)) ] && [ $left = 0 ]; then
        way thp
        ok "$1: attach and detach ($lifted KiB)"
    else
        failed "$1: attach and detach: $lifted KiB, then $left; $(tr '\n' ' ' </tmp/err) $(tail -n 3 /tmp/out | tr '\n' ' ')"
    fi
}

# preloaded NAME: the preloaded library lifts code and constants.
preloaded() {
    feature "library: preloaded"
    start env LD_PRELOAD=/lib/libpagelift.so PAGELIFT="only=pie_by_default pages=thp lift=text,rodata" pie_by_default
    lifted=$(smaps_sum $pid AnonHugePages)
    stop "$1: library"
    echo "status $?" >>/tmp/out
    if cmp -s $plain /tmp/out && [ $lifted -ge $((8 * 1024)) ]; then
        way thp
        ok "$1: library ($lifted KiB)"
    else
        failed "$1: library: $lifted KiB; $(tr '\n' ' ' </tmp/err) $(tail -n 3 /tmp/out | tr '\n' ' ')"
    fi
}

# own NAME PROGRAM: a program that checks itself succeeds, and leaves the pool as full as before.
own() {
    command -v $2 >/dev/null || return # not every program is for every kernel
    before=$(free_pages)
    timeout -s KILL 200 $2 >/tmp/out 2>/tmp/err
    status=$?
    if [ "$(tail -n 1 /tmp/out)" != ok ]; then
        failed "$1: status $status, $(grep -v '^[0-9a-f]*-' /tmp/err | tail -n 3 | tr '\n' ' ')"
        # Children of a killed program hold pages until they have ended; the next check must not fail for that.
        settle $before
    elif [ "$(free_pages)" != "$before" ]; then
        failed "$1: $before pages were free, now $(free_pages)"
    else
        ok "$1"
    fi
}

# same NAME PROGRAM OPTIONS...: only the output and the ending must be the same.
same() {
    name=$1 program=$2
    shift 2
    [ -x /bin/${program#/bin/} ] || return
    plain_of $program
    plain_output $launcher pagelift run -q "$@" -- $program >/tmp/out
    if cmp -s $plain /tmp/out; then
        ok "$name"
    else
        failed "$name: it printed $(tail -n 3 /tmp/out | tr '\n' ' '), plain $(tail -n 3 $plain | tr '\n' ' ')"
    fi
}

# finds NAME TEXT...: doctor, run by the launcher, prints these texts.
finds() {
    name=$1
    shift
    $launcher pagelift doctor >/tmp/said 2>&1
    for text in "$@"; do
        grep -q "$text" /tmp/said || { failed "$name: no $text in $(tr '\n' '|' </tmp/said)"; return; }
    done
    ok "$name"
}
# fix_of TITLE: the command that doctor prints as its fix.
fix_of() {
    $launcher pagelift doctor --json |
        awk -v title="$1" 'index($0, title) { found = 1 } found && /"commands":/ { getline; print; exit }' |
        awk -F '"' '{ print $2 }'
}
launcher=
any=1000000000
