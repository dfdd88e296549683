#!/bin/sh
# Runs in both boots of a virtual machine; checks.service starts it. Somebody who never reserved a huge page follows what
# `pagelift pool plan` prints (first boot), finds the pages and the servers lifted (second), and gives everything back.
exec </dev/null >/dev/ttyS0 2>&1
cd /checks || exit
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
boot=$(($(cat boot 2>/dev/null) + 1))
echo $boot >boot

seconds() { cut -d . -f 1 /proc/uptime; }
ok() { echo "RESULT ok boot $boot, $(seconds) s: $*"; }
failed() { echo "RESULT failed boot $boot: $*"; }

# check WHAT COMMAND...: succeeds.
check() {
    what=$1
    shift
    if "$@" >said 2>&1; then ok "$what"; else failed "$what: $(tail -n 20 said | tr '\n\r' '| ')"; fi
}
# has WHAT NEEDLE: what the last command said.
has() { if grep -qF -- "$2" said; then ok "$1"; else failed "$1: $(tr '\n\r' '| ' <said)"; fi; }
# equal WHAT WANTED FOUND
equal() { if [ "$2" = "$3" ]; then ok "$1"; else failed "$1: found $3, needed $2"; fi; }

answers() { [ "$(mariadb -Ne 'select 6 * 7')" = 42 ] && [ "$(redis-cli ping)" = PONG ]; }
pool() { cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; }
property() { systemctl show "$1" -p "$2" --value; }
# KiB of code of a unit's main process that lies on huge pages.
huge_code() {
    awk '$1 ~ /-/ { code = $2 ~ /x/ }
        code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped|Private_Hugetlb|Shared_Hugetlb):/ { sum += $2 }
        END { print sum + 0 }' "/proc/$(property "$1" MainPID)/smaps"
}
# How many lines of ours a unit's journal has in this boot.
lines_of_ours() { journalctl --sync; journalctl -b -o cat --no-pager -u "$1" | grep -c pagelift; }
# before UNIT OTHER: the first has started before the other was executed.
before() { [ "$(property "$1" ActiveEnterTimestampMonotonic)" -le "$(property "$2" ExecMainStartTimestampMonotonic)" ]; }
# All that the administrator and packages have made, the servers' units, pools and mounts.
state() {
    find /etc /usr -xdev ! -path '/usr/share/*' | sort
    find /etc -xdev -type f ! -name 'ld.so.cache*' -exec sha256sum {} + | sort -k 2
    systemctl cat mariadb redis-server
    systemctl list-unit-files --no-pager --no-legend
    pool
    grep -c pagelift /proc/mounts
}
finish() {
    echo 'END OF CHECKS'
    sync
    exec systemctl --no-block "$1"
}

systemctl is-system-running --wait
equal 'all units have started' '' "$(systemctl --failed --plain --no-legend)"
check 'servers answer' answers

case $boot in
1)
    equal 'nobody has reserved a page' 0 "$(pool)"
    equal 'the code of the server is on ordinary pages' 0 "$(huge_code mariadb)"
    state >before
    check 'the packages are installed' dpkg --force-unsafe-io -i packages/pagelift_*.deb packages/libpagelift0_*.deb

    # 64 pages: those of the program's code and data, and the rest for what it asks for by itself (large-pages).
    check 'a plan is made' pagelift pool plan -- mariadbd
    needed=$(sed -n 's/^  pagelift pool reserve 2M:\([0-9]*\)$/\1/p' said)
    check 'pages are added to the plan' pagelift pool plan "2M:$((64 - needed))" -- mariadbd
    has 'the plan names 64 pages' 'pagelift pool reserve 2M:64'
    last=$(grep -o 'pagelift pool plan --install systemd .*' said)
    printf '[mariadbd]\nlarge-pages\ninnodb-buffer-pool-size=64M\n' >/etc/mysql/mariadb.conf.d/90-large-pages.cnf
    check 'what it prints makes them last' sh -c "$last"
    equal 'no page is reserved before the boot' 0 "$(pool)"
    check 'a store of images is made to last' pagelift image setup --size 64M --install systemd

    running=$(property mariadb MainPID)
    check 'mariadb is enabled' pagelift enable --pages hugetlb mariadb
    has 'enable says what a restart does' 'mariadb.service runs on as it is'
    check 'redis-server is enabled' pagelift enable redis-server
    equal 'the server runs on' "$running" "$(property mariadb MainPID)"
    finish reboot
    ;;
2)
    equal 'the pool has its pages' 64 "$(pool)"
    check 'pages come before the server' before pagelift-pool-main.service mariadb
    check 'the store comes before the server' before run-pagelift-images.mount mariadb
    check 'the store comes before redis-server' before run-pagelift-images.mount redis-server
    [ "$(huge_code mariadb)" -ge 4096 ] && ok "$(huge_code mariadb) KiB of code are on huge pages" ||
        failed "only $(huge_code mariadb) KiB of code are on huge pages: $(journalctl -b -o cat -u mariadb | tr '\n' '|')"
    check 'status shows the server' pagelift status "$(property mariadb MainPID)"
    has 'status shows its pages of the pool' 'hugetlb'
    equal 'the journal has one line of ours' 1 "$(lines_of_ours mariadb)"
    equal 'the journal of redis-server has one line of ours' 1 "$(lines_of_ours redis-server)"
    left=$(awk '$1 == "HugePages_Free:" { left += $2 } $1 == "HugePages_Rsvd:" { left -= $2 } END { print left }' /proc/meminfo)
    # innodb-buffer-pool-size alone is 32 of them.
    [ "$left" -le 22 ] && ok "large-pages has its pages, $left are left" || failed "$left pages are left: large-pages took none"
    check 'enabled lists both' pagelift enabled
    has 'mariadb is current' current

    rm /etc/mysql/mariadb.conf.d/90-large-pages.cnf
    check 'all services are disabled and restarted' pagelift disable --all --now
    equal 'its code is on ordinary pages again' 0 "$(huge_code mariadb)"
    check 'the pages are taken back' pagelift pool plan --uninstall
    check 'pages are released' pagelift pool release 2M:all
    equal 'the pool is empty' 0 "$(pool)"
    check 'the store is taken away' sh -ec 'systemctl disable --now run-pagelift-images.mount run-pagelift-images-gc.timer
        cd /etc/systemd/system
        rm run-pagelift-images.mount run-pagelift-images-gc.service run-pagelift-images-gc.timer
        systemctl daemon-reload'
    check 'the packages are purged' dpkg --force-unsafe-io -P pagelift libpagelift0
    check 'servers answer without it' answers
    state >after
    equal 'everything is as it was' '' "$(diff before after)"
    finish poweroff
    ;;
esac
