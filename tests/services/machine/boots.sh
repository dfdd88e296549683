#!/bin/sh
# Runs in both boots of a virtual machine; checks.service starts it. An administrator without reserved huge pages
# follows the output of `pagelift pool plan` (first boot), finds the pages and the servers lifted (second), sees them
# reload, crash, and be upgraded, and removes everything. The agent lifts in the first boot, and starts with the second.
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
# has WHAT NEEDLE: the last command printed it.
has() { if grep -qF -- "$2" said; then ok "$1"; else failed "$1: $(tr '\n\r' '| ' <said)"; fi; }
# equal WHAT WANTED FOUND
equal() { if [ "$2" = "$3" ]; then ok "$1"; else failed "$1: found $3, needed $2"; fi; }

# The servers, and the services that start them.
POSTGRESQL=postgresql@15-main
SERVICES="mariadb redis-server $POSTGRESQL answers"
ask_postgresql() { runuser -u postgres -- /usr/lib/postgresql/15/bin/psql -tAc 'select 6 * 7'; }
ask_node() { bash -c "exec 3<>/dev/tcp/127.0.0.1/8042 && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && tail -n 1 <&3"; }
answers() {
    [ "$(mariadb -Ne 'select 6 * 7')" = 42 ] && [ "$(redis-cli ping)" = PONG ] &&
        [ "$(ask_postgresql)" = 42 ] && [ "$(ask_node)" = 42 ]
}
pool() { cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; }
property() { systemctl show "$1" -p "$2" --value; }
# KiB of a unit's main process's code on huge pages.
huge_code() {
    awk '$1 ~ /-/ { code = $2 ~ /x/ }
        code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped|Private_Hugetlb|Shared_Hugetlb):/ { sum += $2 }
        END { print sum + 0 }' "/proc/$(property "$1" MainPID)/smaps"
}
has_huge_code() { [ "$(huge_code "$1")" -gt 0 ]; }
# lifted UNIT LINES WORDS: `pagelift status` has a line with these words about its main process, and its journal has
# LINES lines of Pagelift in this boot.
lifted() {
    journal=$(journalctl -b -o cat --no-pager -u "$1")
    check "status shows $1" pagelift status "$(property "$1" MainPID)"
    grep -Eq "^ +$3" said && ok "$1 is lifted: $(grep -E "^ +$3" said | tr -s ' ')" ||
        failed "$1 is not lifted ($3): $(cat said) $journal"
    equal "the journal of $1 has one line of ours for each start" "$2" "$(echo "$journal" | grep -c pagelift)"
}
# all_lifted LINES
all_lifted() {
    journalctl --sync
    lifted mariadb "$1" 'text .* hugetlb'
    # Its code fills no huge page.
    lifted redis-server "$1" 'anonymous memory .* thp'
    lifted $POSTGRESQL "$1" 'text .* tmpfs'
    # Its code is in a library.
    lifted answers "$1" 'text .* thp'
}
# The main processes of all services.
# shellcheck disable=SC2086 # several words
main_processes() { systemctl show $SERVICES -p MainPID --value | xargs; }
# Changes the files like an upgrade of their packages.
replace_programs() {
    for program in mariadbd redis-server postgresql/15/bin/postgres node; do
        file=$(readlink -f "$(ls -d /usr/sbin/$program /usr/bin/$program /usr/lib/$program 2>/dev/null | head -n 1)")
        # Packages keep the times of their files.
        cp -p "$file" "$file.new" && echo upgraded >>"$file.new" && touch -r "$file" "$file.new" && mv "$file.new" "$file" || return
    done
}
# soon COMMAND...: succeeds within two minutes.
soon() {
    deadline=$(($(seconds) + 120))
    until "$@"; do
        [ "$(seconds)" -lt $deadline ] || { echo "$* does not hold" && return 1; }
        sleep 0.2
    done
}
# restarted UNIT PROCESS: the unit runs again, with another main process.
restarted() { [ "$(property "$1" ActiveState)" = active ] && [ "$(property "$1" MainPID)" -gt 0 ] && [ "$(property "$1" MainPID)" != "$2" ]; }
# said_by UNIT WORDS: its journal contains them.
said_by() { journalctl -b -o cat --no-pager -u "$1" | grep -qF -- "$2"; }
# All servers crash at once, and systemd starts them again.
crash() {
    for unit in $SERVICES; do
        mkdir -p "/run/systemd/system/$unit.service.d"
        printf '[Service]\nRestart=on-failure\nRestartSec=0\n' >"/run/systemd/system/$unit.service.d/crash.conf"
    done
    systemctl daemon-reload
    before=$(main_processes)
    for unit in $SERVICES; do systemctl kill --kill-whom=main -s SEGV "$unit"; done
    for unit in $SERVICES; do
        soon restarted "$unit" "${before%% *}" || return
        before=${before#* }
    done
    soon answers || return
    rm -r /run/systemd/system/*.service.d/crash.conf
    systemctl daemon-reload
}
# Output of `systemctl show` without properties of a single run; one word of a list per line, because lists are
# unordered.
properties() {
    # An empty line separates two units.
    systemctl show "$@" | sed 's/ ; start_time=.*//' | grep -vEf of-a-run | awk -v names="$*" '
        BEGIN { split(names, units, " "); unit = 1 }
        $0 == "" { unit++; next }
        {
            name = $0; sub(/=.*/, "", name); sub(/^[^=]*=/, "")
            count = split($0, words, " ")
            for (i = 1; i <= count; i++) print units[unit], name, words[i]
        }' | sort
}
# before UNIT OTHER: the first has started before the other was executed.
before() {
    ready=$(property "$1" ActiveEnterTimestampMonotonic)
    executed=$(property "$2" ExecMainStartTimestampMonotonic)
    echo "$1 at $ready, $2 at $executed" # 0 if not started
    [ "$ready" -gt 0 ] && [ "$ready" -le "$executed" ]
}
# All files that the administrator and packages have made, links that enable units, the servers' units, pools and
# mounts.
state() {
    # Files that servers and the system write by themselves belong to no package.
    written='/checks /tmp /var/tmp /var/log /var/backups /var/cache/ldconfig /var/lib/mysql /var/lib/redis /var/lib/postgresql
        /var/lib/private /var/lib/logrotate /var/lib/systemd/timers /var/lib/systemd/random-seed /var/lib/dpkg/triggers
        /var/lib/dpkg/lock* /var/lib/dpkg/*-old'
    set -f
    # shellcheck disable=SC2046,SC2086 # several words each
    find / -xdev \( $(printf -- '-path %s -o ' $written) -false \) -prune -o -print | sort
    set +f
    find /etc -xdev -type f ! -name 'ld.so.cache*' -exec sha256sum {} + | sort -k 2
    # shellcheck disable=SC2086 # several words
    properties $SERVICES
    # shellcheck disable=SC2086
    systemctl cat $SERVICES
    pool
    grep -c pagelift /proc/mounts
}
# Rules that lift the database as soon as it has started.
write_rules() {
    mkdir -p /etc/pagelift/agent.d && cat >/etc/pagelift/agent.d/50-databases.toml <<'END'
[agent]
mode = "act"
scan = "2s"
settle = "1s"
overhead = "100%"
cpu = "100%"
max_pause = "10s"
max_cpu_pressure = "100%"
max_memory_pressure = "100%"
min_free_memory = "0%"
[[rule]]
name = "databases"
match = { exe = "/usr/sbin/mariadbd" }
pages = "thp"
keep = "always"
END
}
finish() {
    echo 'END OF CHECKS'
    sync
    exec systemctl --no-block "$1"
}

systemctl is-system-running --wait
equal 'all units have started' '' "$(systemctl --failed --plain --no-legend)"
check 'servers answer' soon answers

case $boot in
1)
    equal 'nobody has reserved a page' 0 "$(pool)"
    for unit in $SERVICES; do equal "the code of $unit is on ordinary pages" 0 "$(huge_code "$unit")"; done
    # A heap of more than one huge page, which it reads again at each start.
    check 'redis-server has data' redis-cli setrange data 16777216 x
    state >before
    equal 'properties are among what is compared' 1 "$(grep -cx 'redis-server MemoryDenyWriteExecute yes' before)"
    check 'the packages are installed' dpkg --force-unsafe-io -i packages/pagelift_*.deb packages/libpagelift0_*.deb

    check 'rules are written' write_rules
    check 'the agent is enabled' systemctl enable --now pagelift-agent
    check 'it lifts mariadb' soon has_huge_code mariadb
    # No more lifts by the agent until the second boot has disabled the services.
    check 'its kill switch is on' touch /etc/pagelift/agent.off

    # 64 pages: for the program's code and data, and the rest for its own requests (large-pages).
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
    check 'redis-server is enabled' pagelift enable --heap=thp redis-server
    check 'PostgreSQL is enabled' pagelift enable --only postgres postgresql@
    check 'the node service is enabled' pagelift enable answers
    equal 'the server runs on' "$running" "$(property mariadb MainPID)"
    finish reboot
    ;;
2)
    equal 'the pool has its pages' 64 "$(pool)"
    check 'pages come before the server' before pagelift-pool-main.service mariadb
    check 'the store comes before the server' before run-pagelift-images.mount mariadb
    check 'the store comes before PostgreSQL' before run-pagelift-images.mount $POSTGRESQL
    [ "$(huge_code mariadb)" -ge 4096 ] && ok "$(huge_code mariadb) KiB of code are on huge pages" ||
        failed "only $(huge_code mariadb) KiB of code are on huge pages: $(journalctl -b -o cat -u mariadb | tr '\n' '|')"
    all_lifted 1
    left=$(awk '$1 == "HugePages_Free:" { left += $2 } $1 == "HugePages_Rsvd:" { left -= $2 } END { print left }' /proc/meminfo)
    # innodb-buffer-pool-size alone takes 32 pages.
    [ "$left" -le 22 ] && ok "large-pages has its pages, $left are left" || failed "$left pages are left: large-pages took none"
    check 'enabled lists them' pagelift enabled
    equal 'all are current' 4 "$(grep -c ' current$' said)"

    agent=$(property pagelift-agent MainPID)
    [ "$agent" -gt 0 ] && ok 'the agent has started' || failed "the agent does not run: $(journalctl -b -o cat -u pagelift-agent)"

    running=$(main_processes)
    check 'PostgreSQL reloads' systemctl reload $POSTGRESQL
    check 'the node service reloads' systemctl reload answers
    check 'it says so' soon said_by answers 'has reloaded'
    check 'Pagelift is upgraded' dpkg --force-unsafe-io -i later-packages/pagelift_*.deb later-packages/libpagelift0_*.deb
    equal 'it is the later one' 2 "$(dpkg-query -W -f '${Version}' pagelift | sed 's/.*-//')"
    check 'the agent is restarted' soon restarted pagelift-agent "$agent"
    check 'the programs are replaced' replace_programs
    equal 'the servers run on' "$running" "$(main_processes)"
    check 'they answer' answers
    check 'all crash and are started again' crash
    all_lifted 2

    rm /etc/mysql/mariadb.conf.d/90-large-pages.cnf
    check 'all services are disabled and restarted' pagelift disable --all --now
    for unit in $SERVICES; do equal "the code of $unit is on ordinary pages again" 0 "$(huge_code "$unit")"; done
    rm /etc/pagelift/agent.off
    check 'the agent lifts mariadb by its rule' soon has_huge_code mariadb
    check 'the agent ends, and undoes that' pagelift agent stop --restore
    equal 'the code of mariadb is restored' 0 "$(huge_code mariadb)"
    equal 'the agent has ended' inactive "$(property pagelift-agent ActiveState)"
    rm -r /etc/pagelift
    check 'the pages are taken back' pagelift pool plan --uninstall
    check 'pages of the unit are released' pagelift pool release --record main
    check 'other pages are released' pagelift pool release 2M:all
    equal 'the pool is empty' 0 "$(pool)"
    check 'the store is taken away' pagelift image setup --uninstall
    check 'it is unmounted' umount /run/pagelift/images
    check 'a service is enabled' pagelift enable --now answers
    check 'it is lifted' soon has_huge_code answers
    running=$(main_processes)
    check 'the packages are purged' dpkg --force-unsafe-io -P pagelift libpagelift0
    equal 'the servers run on, one of them lifted' "$running" "$(main_processes)"
    check 'servers answer without it' soon answers
    check 'they start without it' systemctl restart answers
    equal 'its code is on ordinary pages without it' 0 "$(huge_code answers)"
    state >after
    equal 'everything is as it was' '' "$(diff before after)"
    finish poweroff
    ;;
esac
