//! Real programs under preload.

use crate::library_folder;
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Ending, Need, Test, test_case, tests_folder};

const LIMIT: Duration = Duration::from_secs(600);

pub fn tests() -> Vec<Test> {
    let needs = |pool: u64, commands: &[&str], files: &[&str]| {
        let mut needs: Vec<_> = commands.iter().map(|name| Need::Command((*name).to_owned())).collect();
        needs.extend(files.iter().map(|path| Need::File((*path).to_owned())));
        needs.push(Need::Pool(pool));
        needs
    };
    vec![
        test_case(
            "mariadb_on_pool_pages",
            needs(80 << 20, &["mariadbd", "mariadb-install-db", "mariadb", "sysbench"], &[]),
            mariadb,
        ),
        test_case(
            "postgres_with_50_backends",
            needs(16 << 20, &[], &["/usr/lib/postgresql/15/bin/postgres", "/usr/lib/postgresql/15/bin/pgbench"]),
            postgres,
        ),
        test_case("java_lifts_its_virtual_machine", needs(64 << 20, &["java"], &[]), java),
        test_case("python_lifts_an_extension", needs(32 << 20, &["gcc"], &["/usr/bin/python3"]), python),
    ]
}

/// Runs a script with the library's path in `$LIBRARY`. Returns its output.
fn script(t: &Context, text: &str) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-euc", text]).current_dir(t.folder()).env("LIBRARY", library_folder()?.join("libpagelift.so"));
    shell.env("PROGRAMS", tests_folder().join("library/programs"));
    let output = t.run_within(shell, LIMIT)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}\n{}\n{}", output.ending, output.stdout, output.stderr);
    Ok(output.stdout + &output.stderr)
}

/// Writable memory is lifted too; then the pool is emptied, and the server works under load and ends normally.
fn mariadb(t: &Context) -> Result<()> {
    let said = script(
        t,
        r#"
        # A server that starts removes temporary tables that it finds in /tmp, another test's too.
        mkdir tmp && export TMPDIR=$PWD/tmp
        mariadb-install-db --no-defaults --user=root --datadir=$PWD/data --auth-root-authentication-method=normal >install.log 2>&1
        LD_PRELOAD=$LIBRARY PAGELIFT='only=mariadbd pages=hugetlb writable-pages=hugetlb lift=text,rodata,data,bss' \
            mariadbd --no-defaults --user=root --datadir=$PWD/data --socket=$PWD/socket --skip-networking >server.log 2>&1 &
        server=$!
        trap 'kill $server 2>/dev/null || true' EXIT
        for i in $(seq 1200); do mariadb --no-defaults -S $PWD/socket -e 'select 1' >/dev/null 2>&1 && break; sleep 0.2; done
        grep -q 'rw-p .*anon_hugepage' /proc/$server/maps
        echo 0 >/proc/sys/vm/nr_hugepages
        grep HugePages_Free: /proc/meminfo
        mariadb --no-defaults -S $PWD/socket -e 'create database d'
        load="sysbench oltp_read_write --db-driver=mysql --mysql-socket=$PWD/socket --mysql-user=root --mysql-db=d
              --tables=2 --table-size=10000 --threads=16 --time=5"
        $load prepare >prepare.log 2>&1
        $load run | tee load.log
        mariadb --no-defaults -S $PWD/socket -e 'check table d.sbtest1, d.sbtest2'
        mariadb-admin --no-defaults -S $PWD/socket shutdown
        wait $server
        echo "status $?"
        grep pagelift: server.log
        "#,
    )?;
    ensure!(said.contains("status 0") && said.contains("(hugetlb"), "it said {said}");
    // Deadlocks between transactions are caused by the load; a lost connection would be caused by Pagelift.
    ensure!(said.lines().any(|line| line.trim().starts_with("reconnects:") && line.contains(" 0 ")), "it said {said}");
    ensure!(said.lines().filter(|line| line.contains("check") && line.contains("OK")).count() == 2, "it said {said}");
    ensure!(said.lines().any(|line| line.split_whitespace().eq(["HugePages_Free:", "0"])), "it said {said}");
    let queries = said.lines().find(|line| line.contains("queries:")).unwrap_or_default().trim();
    println!("mariadb_on_pool_pages: {queries}, pool empty");
    Ok(())
}

/// A server that forks for each connection, with a pool that is too small for its children.
fn postgres(t: &Context) -> Result<()> {
    let said = script(
        t,
        r#"
        bin=/usr/lib/postgresql/15/bin
        chmod 755 . ..
        mkdir data && chown postgres data
        as() { setpriv --reuid postgres --regid postgres --clear-groups env HOME=/tmp "$@"; }
        # A socket's path may have only some hundred characters, and no other server must be met there.
        place=$(mktemp -d /tmp/pagelift-pg-XXXXXX)
        chown postgres $place
        at="-h $place -p 54399"
        as $bin/initdb -D $PWD/data -A trust >init.log 2>&1
        as env LD_PRELOAD=$LIBRARY PAGELIFT='only=postgres writable-pages=hugetlb quiet' \
            $bin/postgres -D $PWD/data -k $place -p 54399 -c listen_addresses= -c max_connections=70 >server.log 2>&1 &
        server=$!
        trap 'kill $server 2>/dev/null || true; rm -rf $place' EXIT
        for i in $(seq 1200); do as $bin/psql $at -c 'select 1' >/dev/null 2>&1 && break; sleep 0.2; done
        as $bin/pgbench $at -i -s 2 postgres >bench.log 2>&1
        as $bin/pgbench $at -n -c 50 -j 2 -t 20 postgres 2>&1 | tee -a bench.log
        as $bin/pgbench $at -n -C -S -c 10 -t 20 postgres 2>&1 | tee -a bench.log
        as $bin/pg_ctl -D $PWD/data stop -m fast
        grep -c 'terminated by signal' server.log || true
        rm -rf data
        "#,
    )?;
    ensure!(said.contains("number of transactions actually processed: 1000/1000"), "it said {said}");
    ensure!(said.contains("number of transactions actually processed: 200/200"), "it said {said}");
    ensure!(said.lines().any(|line| line == "0"), "a backend was killed:\n{said}");
    Ok(())
}

/// `libjvm.so` is loaded by `dlopen`.
fn java(t: &Context) -> Result<()> {
    let said = script(
        t,
        r#"
        mkdir source && cat >source/Work.java <<'END'
        public class Work {
            public static void main(String[] arguments) throws Exception {
                long sum = 0;
                for (int i = 0; i < 20_000_000; i++) sum += Integer.toString(i % 1000).length();
                System.out.println(sum);
                java.nio.file.Files.lines(java.nio.file.Path.of("/proc/self/maps"))
                    .filter(line -> line.contains("anon_hugepage")).forEach(System.out::println);
            }
        }
END
        LD_PRELOAD=$LIBRARY PAGELIFT='only=java pages=hugetlb lift=text,rodata verbose' java source/Work.java
        "#,
    )?;
    ensure!(said.contains("57800000") && said.contains("anon_hugepage"), "it said {said}");
    ensure!(said.lines().any(|line| line.contains("libjvm.so text") && line.contains("hugetlb")), "it said {said}");
    Ok(())
}

/// An extension module is loaded by `dlopen`, used, and used after a fork.
fn python(t: &Context) -> Result<()> {
    let said = script(
        t,
        r#"
        gcc -O1 -shared -fPIC -o large.so $PROGRAMS/plugin_for_python.c
        cat >use.py <<'END'
import multiprocessing, large

def check():
    assert large.sum() == 1536 * 1535 // 2
    line = next(l for l in open("/proc/self/maps") if int(l.split("-")[1].split()[0], 16) > large.start() + 0x400000)
    print(line, end="", flush=True)

check()
workers = [multiprocessing.get_context("fork").Process(target=check) for _ in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print([worker.exitcode for worker in workers])
END
        PYTHONPATH=$PWD LD_PRELOAD=$LIBRARY PAGELIFT='only=python3 pages=hugetlb lift=text,rodata verbose' /usr/bin/python3 use.py
        "#,
    )?;
    ensure!(said.contains("[0, 0, 0, 0]") && said.matches("anon_hugepage").count() == 5, "it said {said}");
    ensure!(said.lines().any(|line| line.contains("large.so text") && line.contains("hugetlb")), "it said {said}");
    Ok(())
}
