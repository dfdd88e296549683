//! The programs in `tests/GROUP/programs`: one per behaviour; the head of each source describes the test and its
//! expectations.
//!
//! A directive is a line `// WORD: TEXT` (`; WORD: TEXT` or `# WORD: TEXT` in other languages) before the first line
//! that is not a comment:
//!
//! - `build:` a shell command with `$SRC`, `$OUT` and `$DIR` (the folder of shared files, which is on the include
//!   path); several are run in turn.
//! - `needs:` see [`Need::parse`]; may be repeated.
//! - `run:` the command instead of `$OUT`.
//! - `pages:` the ways it is lifted: `hugetlb`, `hugetlb-writable`, `thp`; default `hugetlb thp`.
//! - `options:` further options of `pagelift run`.
//! - `launch:` a command that comes before `pagelift` (and before the plain program too), `setarch -R` for example.
//! - `expect:` a fact, see the test that reads it.

use crate::need::Need;
use crate::{scratch_folder, tests_folder};
use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One program of the tests.
#[derive(Clone, Debug)]
pub struct Program {
    source: PathBuf,
    text: String,
}

const WORDS: [&str; 7] = ["build", "needs", "run", "pages", "options", "launch", "expect"];

/// The folder of headers and scripts that programs share.
pub fn shared_folder() -> PathBuf {
    tests_folder().join("support/programs")
}

/// Path of a program's source: for `GROUP/NAME` (with the extension) it is `tests/GROUP/programs/NAME`.
///
/// # Errors
/// The name has no group.
pub fn program_source(name: &str) -> Result<PathBuf> {
    let (group, name) = name.split_once('/').with_context(|| format!("{name}: needed GROUP/NAME"))?;
    Ok(tests_folder().join(group).join("programs").join(name))
}

/// The sources of all programs that are started, in order.
///
/// # Errors
/// The folder cannot be read.
pub fn program_files() -> Result<Vec<PathBuf>> {
    let folder = tests_folder().join("start/programs");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.is_file() && path.extension().is_some_and(|e| ["c", "cc", "S", "go"].iter().any(|x| e == *x))
        })
        .collect();
    files.sort();
    Ok(files)
}

impl Program {
    /// The program with this name, see [`program_source`].
    ///
    /// # Errors
    /// The program does not exist, or a directive in it is not known.
    pub fn named(name: &str) -> Result<Self> {
        Self::of(program_source(name)?)
    }

    /// The program with this source.
    ///
    /// # Errors
    /// The source cannot be read, or a directive in it is not known.
    pub fn of(source: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        Ok(Self { source, text })
    }

    /// The file's name without its extension.
    pub fn name(&self) -> String {
        self.source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn head(&self) -> impl Iterator<Item = &str> {
        let comment = |line: &&str| line.starts_with("//") || line.starts_with('#') || line.is_empty();
        self.text.lines().take_while(comment).map(|line| line.trim_start_matches(['/', '#', ' ']))
    }

    /// The texts of all directives of one word.
    pub fn directives(&self, word: &str) -> Vec<String> {
        debug_assert!(WORDS.contains(&word));
        let own = |line: &str| Some(line.strip_prefix(word)?.strip_prefix(':')?.trim().to_owned());
        self.head().filter_map(own).collect()
    }

    /// The text of a directive that occurs at most once.
    pub fn directive(&self, word: &str) -> Option<String> {
        self.directives(word).into_iter().next()
    }

    /// The facts of `expect:` lines that begin with this word, without it.
    pub fn expectations(&self, word: &str) -> Vec<String> {
        let fact = |text: &String| {
            let rest = text.strip_prefix(word)?;
            (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim().to_owned())
        };
        self.directives("expect").iter().filter_map(fact).collect()
    }

    /// Its requirements on the machine, compilers included.
    ///
    /// # Errors
    /// A need is not known.
    pub fn needs(&self) -> Result<Vec<Need>> {
        let written = self.directives("needs").iter().map(|text| Need::parse(text)).collect::<Result<Vec<_>>>();
        let mut needs = written.with_context(|| format!("in {}", self.source.display()))?;
        let compiler = match self.source.extension().and_then(|e| e.to_str()) {
            Some("go") => "go",
            Some("cc") => "g++",
            _ => "gcc",
        };
        needs.push(Need::Command(compiler.to_owned()));
        Ok(needs)
    }

    fn build_commands(&self) -> Vec<String> {
        let written = self.directives("build");
        if !written.is_empty() {
            return written;
        }
        let go = self.source.extension().is_some_and(|e| e == "go");
        vec![if go { "CGO_ENABLED=0 go build -o $OUT $SRC" } else { "gcc -g -O1 -Wall -o $OUT $SRC -lpthread" }.into()]
    }

    /// Builds the program unless a build of the same text exists; returns the path of the executable.
    ///
    /// # Errors
    /// The compiler's message.
    pub fn build(&self) -> Result<PathBuf> {
        let folder = scratch_folder().join("programs").join(format!("{:016x}", self.fingerprint()?));
        let executable = folder.join(self.name());
        if executable.exists() {
            return Ok(executable);
        }
        fs::create_dir_all(&folder)?;
        // Other test targets may run at the same time, so the lock is one between processes.
        let lock = fs::File::create(folder.join("lock"))?;
        let _one_at_a_time = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
        if executable.exists() {
            return Ok(executable);
        }
        let part = folder.join(format!("{}.part", self.name()));
        for command in self.build_commands() {
            self.build_step(&command, &part)?;
        }
        // Java's compiler makes a folder.
        if part.is_dir() {
            fs::rename(&part, &executable)?;
            return Ok(executable);
        }
        let small = folder.join(format!("{}.small", self.name()));
        copy_in_small_pieces(&part, &small)?;
        fs::remove_file(&part)?;
        fs::rename(&small, &executable)?;
        Ok(executable)
    }

    fn build_step(&self, command: &str, out: &Path) -> Result<()> {
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", command])
            .env("SRC", &self.source)
            .env("OUT", out)
            .env("DIR", shared_folder())
            .env("CPATH", shared_folder());
        let home = out.parent().context("a build folder")?;
        // Go needs a cache; its default place needs a home.
        shell.env("BUILD", home).current_dir(home).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
        if std::env::var_os("HOME").is_none() {
            shell.env("GOCACHE", home.join("go-cache"));
        }
        let output = shell.output().context("cannot run sh")?;
        ensure!(
            output.status.success(),
            "{} does not build:\n+ {command}\n{}",
            self.source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Changes with the source, with the files it may include, and with the command.
    fn fingerprint(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        (&self.text, self.build_commands()).hash(&mut hasher);
        let folder = self.source.parent().context("a source without a folder")?;
        let mut shared: Vec<PathBuf> = fs::read_dir(shared_folder())?.filter_map(|e| Some(e.ok()?.path())).collect();
        let included = self.text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
        shared.extend(included.map(|name| folder.join(name)).filter(|path| path.exists()));
        shared.sort();
        for file in shared {
            fs::read(file)?.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// The command that runs it: the `run:` directive with `$OUT` replaced, or the executable itself.
    ///
    /// # Errors
    /// It does not build.
    pub fn command(&self) -> Result<Command> {
        let executable = self.build()?;
        let line = self.directive("run").unwrap_or_else(|| "$OUT".to_owned());
        let line = line.replace("$OUT", &executable.to_string_lossy());
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { bail!("an empty `run:` in {}", self.source.display()) };
        let mut command = Command::new(first);
        command.args(words);
        Ok(command)
    }
}

/// Copies a program so that the page cache keeps the copy in small folios. A linker writes large pieces, which a file system may
/// keep in huge folios. The kernel then maps the code with huge pages in 1 start of 512, if the base is aligned by chance.
pub(crate) fn copy_in_small_pieces(from: &Path, to: &Path) -> Result<()> {
    let operand = |name: &str, path: &Path| {
        let mut operand = OsString::from(name);
        operand.push(path);
        operand
    };
    // dd writes the file: the kernel executes no file that is open for writing, and a child of another test inherits the open
    // files of this process until it executes its program. Holes stay holes.
    let mut dd = Command::new("dd");
    dd.args([operand("if=", from), operand("of=", to)]).args(["bs=64K", "conv=sparse", "status=none"]);
    let output = dd.output().with_context(|| format!("cannot start {dd:?}"))?;
    ensure!(output.status.success(), "{dd:?}: {}", String::from_utf8_lossy(&output.stderr));
    let (original, copied) = (fs::metadata(from)?, fs::metadata(to)?.len());
    ensure!(copied == original.len(), "{dd:?} has copied {copied} bytes of {}", original.len());
    Ok(fs::set_permissions(to, original.permissions())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directive_in_every_program_is_known() {
        for file in program_files().unwrap() {
            let program = Program::of(file).unwrap();
            program.needs().unwrap();
            for line in program.head() {
                if let Some((word, _)) = line.split_once(": ") {
                    assert!(
                        !word.chars().all(|c| c.is_ascii_lowercase()) || WORDS.contains(&word),
                        "{}: `{word}:`",
                        program.name()
                    );
                }
            }
        }
    }

    #[test]
    fn expectations_are_found_by_their_first_word() {
        let text =
            "// A program.\n//\n// expect: lifted text data\n// expect: liftedness\nint x; // expect: lifted no\n";
        let program = Program { source: "x.c".into(), text: text.into() };
        assert_eq!(program.expectations("lifted"), ["text data"]);
    }
}
