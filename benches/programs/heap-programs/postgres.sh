# PostgreSQL joins two tables of 400,000 rows by hash, in memory. The time is the server's, for the query.
. "$(dirname "$0")/common.sh"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as() { setpriv --reuid postgres --regid postgres --clear-groups env HOME=/tmp "$@"; }
sql() { as "$bin/psql" -qAt -h "$PWD/data" -d postgres -c "$1"; }
start() {
    as "$@" "$bin/postgres" -D "$PWD/data" -k "$PWD/data" -h '' -c shared_buffers=100MB -c work_mem=1GB -c jit=off \
        -c max_parallel_workers_per_gather=0 -c autovacuum=off >log 2>&1 &
    server=$!
    trap stop EXIT
    for _ in $(seq 100); do sql 'select 1' >/dev/null 2>&1 && break; sleep 0.1; done
}
stop() {
    [ ! -e data/postmaster.pid ] || kill -INT "$(head -1 data/postmaster.pid)"
    wait $server || true
}
prepare() {
    mkdir data && chown postgres data
    as "$bin/initdb" -D "$PWD/data" -A trust >/dev/null
    start
    sql 'create table a as select n as k, md5(n::text) as v from generate_series(1, 400000) n'
    sql 'create table b as select (n::bigint * 7919) % 400000 + 1 as k, n as w from generate_series(1, 400000) n'
    sql 'analyze'
}
run() {
    start $RUN
    # The server process that runs the query takes the time, twice; the second time counts.
    as "$bin/psql" -qAt -h "$PWD/data" -d postgres >answers <<'SQL'
set enable_mergejoin = off;
set enable_nestloop = off;
select count(*), sum(w), max(v) from a join b using (k);
\timing on
select count(*), sum(w), max(v) from a join b using (k);
select count(*), sum(w), max(v) from a join b using (k);
SQL
    sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' answers | awk '{ s += $1 } END { print s / 1000, 0 }' >>cpu
    grep -v '^Time' answers
}
"$1"
