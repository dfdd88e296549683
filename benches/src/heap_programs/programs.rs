//! The programs: real ones with a script each, and programs of mimalloc-bench, which `suite.sh` compiles.

use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use test_support::command_exists;

/// A measured program.
#[derive(Clone, Copy)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Commands that it needs.
    needs: &'static [&'static str],
    /// The pool that its heap takes, in bytes.
    pub(super) pool_bytes: u64,
    /// True if `suite.sh` builds and runs it.
    pub(super) of_suite: bool,
}

const fn real(name: &'static str, needs: &'static [&'static str], mebibytes: u64) -> Program {
    Program { name, needs, pool_bytes: mebibytes << 20, of_suite: false }
}

const fn of_suite(name: &'static str, mebibytes: u64) -> Program {
    Program { name, needs: &[], pool_bytes: mebibytes << 20, of_suite: true }
}

pub(super) const PROGRAMS: [Program; 40] = [
    real("redis", &["redis-server", "redis-benchmark"], 96),
    real("postgres", &["setpriv", "pg_config"], 150),
    real("python", &["/usr/bin/python3"], 320),
    real("zstd", &["zstd"], 192),
    real("xz", &["xz"], 128),
    real("sort", &["sort"], 200),
    real("node", &["node"], 128),
    real("java", &["java", "javac"], 448),
    real("duckdb", &["pip3"], 300),
    real("sqlite", &["sqlite3"], 96),
    real("jq", &["jq"], 80),
    of_suite("cfrac", 32),
    of_suite("espresso", 32),
    of_suite("barnes", 32),
    of_suite("larson", 128),
    of_suite("larson-sized", 128),
    of_suite("alloc-test-1", 128),
    of_suite("alloc-test-N", 128),
    of_suite("cache-scratch-1", 32),
    of_suite("cache-scratch-N", 32),
    of_suite("cache-thrash-1", 32),
    of_suite("cache-thrash-N", 32),
    of_suite("xmalloc-test", 256),
    of_suite("malloc-large", 800),
    of_suite("malloc-large-old", 32),
    of_suite("mleak", 32),
    of_suite("mstress", 512),
    of_suite("rptest", 256),
    of_suite("glibc-simple", 32),
    of_suite("glibc-thread", 64),
    of_suite("sh6bench", 512),
    of_suite("sh8bench", 256),
    Program { needs: &["z3"], ..of_suite("z3", 128) },
    Program { needs: &["ruby"], ..of_suite("rbstress-1", 256) },
    Program { needs: &["ruby"], ..of_suite("rbstress-N", 256) },
    Program { needs: &["gs"], ..of_suite("gs", 128) },
    of_suite("lean", 0),
    of_suite("linux", 0),
    of_suite("lua", 0),
    of_suite("rocksdb", 0),
];

impl Program {
    /// The first missing command.
    pub(super) fn missing(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|command| match *command {
            "pg_config" => !Path::new("/usr/lib/postgresql").exists(),
            _ => !Path::new(command).is_absolute() && !command_exists(command) || is_absent(command),
        })
    }

    /// Prepares the program in an empty folder.
    pub(super) fn prepare(&self, suite: Option<&Path>, folder: &Path) -> Result<()> {
        let mut command = self.script("prepare", "", suite, folder);
        let prepared = command.stderr(Stdio::piped()).output().context("no bash")?;
        ensure!(prepared.status.success(), "cannot be prepared: {}", String::from_utf8_lossy(&prepared.stderr).trim());
        Ok(())
    }

    /// A step of the program's script. `run` holds the words before the program.
    pub(super) fn script(&self, step: &str, run: &str, suite: Option<&Path>, folder: &Path) -> Command {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/heap-programs");
        let script = if self.of_suite { "suite" } else { self.name };
        let mut command = Command::new("bash");
        command.arg("-eu").arg(scripts.join(format!("{script}.sh"))).arg(step);
        if self.of_suite {
            command.arg(self.name);
        }
        command.env("SUITE", suite.map(PathBuf::from).unwrap_or_default()).env("RUN", run);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

fn is_absent(command: &str) -> bool {
    Path::new(command).is_absolute() && !Path::new(command).exists()
}
