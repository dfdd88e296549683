"""A query of DuckDB: how many of three million hashes differ."""
import duckdb

base = duckdb.connect()
base.execute("set threads = 1")
print(base.execute("select count(distinct hash(range) % 1000003) from range(3000000)").fetchall())
