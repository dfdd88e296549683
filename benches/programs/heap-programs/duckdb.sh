# DuckDB joins two tables of three million rows by hash. The wheel comes from PyPI.
. "$(dirname "$0")/common.sh"
prepare() { /usr/bin/python3 -m pip install -q --target=packages duckdb 2>/dev/null || python3 -m pip install -q --target=packages --python-version 3.11 --only-binary=:all: duckdb; }
run() { PYTHONPATH=$PWD/packages cpu $RUN /usr/bin/python3 -c '
import duckdb
base = duckdb.connect()
base.execute("set threads = 1")
base.execute("set enable_progress_bar = false")
base.execute("create table a as select hash(range) as k, range as v from range(3000000)")
base.execute("create table b as select hash(range * 2) as k, range as w from range(3000000)")
print(base.execute("select count(*), sum(v + w) from a join b using (k)").fetchall())'; }
"$1"
