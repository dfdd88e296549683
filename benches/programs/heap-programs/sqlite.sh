# SQLite in memory: a table of 120,000 rows with an index, and joins by it.
. "$(dirname "$0")/common.sh"
prepare() { :; }
run() { cpu $RUN sqlite3 :memory: "
pragma cache_size = -1000000;
create table a(k integer primary key, v text);
insert into a with recursive n(i) as (select 1 union all select i + 1 from n where i < 120000)
    select i, printf('%x', (i * 2654435761) % 4294967296) || hex(zeroblob(20)) from n;
create index a_v on a(v);
select count(*), sum(a.k), max(b.v) from a join a b on b.k = (a.k * 7919) % 120000 + 1;
select count(*), sum(length(v)) from (select distinct substr(v, 1, 5) as v from a order by v);
select sum(x.k) from a x join a y on y.v = x.v where x.k % 2 = 0;"; }
"$1"
