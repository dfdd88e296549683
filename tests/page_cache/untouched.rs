//! Files that `pagelift align --relayout` cannot change: they stay as they were, and nothing is left beside them.

use crate::layouts::set_attribute;
use crate::needs;
use crate::relayout::{OTHER_ADDRESS, disagreeing};
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Ending, Need, Output, Skipped, Test, copy_program, pagelift_binary, test_case};

pub fn tests() -> Vec<Test> {
    let root = |command: &str| [needs(), vec![Need::Root, Need::Command(command.into())]].concat();
    vec![
        test_case("untouched/a_write_fails_in_the_middle", needs(), write_fails),
        test_case("untouched/the_file_system_is_full_or_read_only", root("unshare"), no_room),
        test_case("untouched/the_file_is_immutable", root("chattr"), immutable),
        test_case("untouched/the_file_is_measured", root("python3"), measured),
        test_case("untouched/a_mapping_on_overlayfs_may_be_written", root("python3"), mapped_on_overlay),
    ]
}

/// A program alone in a folder.
struct Alone {
    folder: PathBuf,
    program: PathBuf,
    contents: Vec<u8>,
    inode: u64,
}

impl Alone {
    fn new(t: &Context) -> Result<Self> {
        let built = disagreeing(t, OTHER_ADDRESS)?;
        let folder = t.folder().join("alone");
        fs::create_dir(&folder)?;
        let program = folder.join("program");
        copy_program(t, &built, &program)?;
        Ok(Self { contents: fs::read(&program)?, inode: program.metadata()?.ino(), folder, program })
    }

    fn is_untouched(&self) -> Result<()> {
        let left: Vec<_> = fs::read_dir(&self.folder)?.flatten().map(|entry| entry.file_name()).collect();
        ensure!(left == ["program"], "{left:?}");
        ensure!(self.program.metadata()?.ino() == self.inode, "it was replaced");
        ensure!(fs::read(&self.program)? == self.contents, "other contents");
        Ok(())
    }

    /// Runs a script of the shell, with the command as `$PAGELIFT` and the words as `$1` and so on.
    fn shell(&self, t: &Context, script: &str, words: &[&Path]) -> Result<Output> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).args(words).env("PAGELIFT", pagelift_binary()?);
        t.run(shell)
    }
}

/// A limit of the file's length, of 2 or 4 MiB, has the effect of a disk that is full after the first bytes.
fn write_fails(t: &Context) -> Result<()> {
    let alone = Alone::new(t)?;
    let other = alone.folder.join("other");
    let program = alone.program.as_path();
    for words in [vec![program], vec![Path::new("-o"), &other, program]] {
        let script = "trap '' XFSZ; ulimit -f 4096; exec \"$PAGELIFT\" align --relayout \"$@\"";
        let output = alone.shell(t, script, &words)?;
        let says = output.stderr.contains("copying the file: File too large");
        ensure!(output.ending == Ending::Exit(125) && says, "{output:?}");
        ensure!(output.stderr.contains(words.get(1).unwrap_or(&program).to_string_lossy().as_ref()), "{output:?}");
        alone.is_untouched()?;
        let killed = alone.shell(t, "ulimit -f 4096; exec \"$PAGELIFT\" align --relayout \"$@\"", &words)?;
        ensure!(matches!(killed.ending, Ending::Signal(..)), "{killed:?}");
        alone.is_untouched()?;
    }
    Ok(())
}

fn no_room(t: &Context) -> Result<()> {
    let alone = Alone::new(t)?;
    let mount = t.folder().join("mount");
    fs::create_dir(&mount)?;
    for (options, says) in [("size=16m", "free on the file system, needed"), ("ro", "Read-only file system")] {
        // The mount is private: others would see it if `/` is shared.
        let script = format!(
            "exec unshare --mount sh -ec '
            mount --make-rprivate /
            mount -t tmpfs -o size=64m none \"$1\"
            cp \"$2\" \"$1/program\"
            mount -o remount,{options} \"$1\"
            status=0
            \"$PAGELIFT\" align --relayout \"$1/program\" || status=$?
            \"$PAGELIFT\" align --relayout -o \"$1/other\" \"$2\" && exit 1
            cmp \"$1/program\" \"$2\"
            [ \"$(ls -A \"$1\")\" = program ]
            exit $status' sh \"$@\""
        );
        let output = alone.shell(t, &script, &[&mount, &alone.program])?;
        let refusals = output.stderr.lines().filter(|line| line.contains(says)).count();
        ensure!(output.ending == Ending::Exit(125) && refusals == 2, "{output:?}");
        alone.is_untouched()?;
    }
    Ok(())
}

/// Maps a file shared, closes it, prints `ready`, and ends when its standard input does.
const MAPS: &str = "import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
assert c.mmap(None, 4096, 3, 1, file, 0) != ctypes.c_void_p(-1).value
os.close(file)
print('ready', flush=True)
sys.stdin.read()
";

/// The kernel grants a lease on such a file.
fn mapped_on_overlay(t: &Context) -> Result<()> {
    let alone = Alone::new(t)?;
    let script = "exec unshare --mount sh -ec '
        cd \"$1\"
        mount --make-rprivate /
        mkdir lower upper work merged
        mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 77
        cp \"$2\" merged/program
        mkfifo end ready
        python3 -c \"$3\" merged/program <end >ready &
        exec 3>end
        read line <ready
        status=0
        \"$PAGELIFT\" align --relayout merged/program || status=$?
        cmp merged/program \"$2\"
        exec 3>&-
        wait
        \"$PAGELIFT\" align --relayout merged/program
        exit $status' sh \"$@\"";
    let folder = t.folder().join("overlay");
    fs::create_dir(&folder)?;
    let output = alone.shell(t, script, &[&folder, &alone.program, Path::new(MAPS)])?;
    if output.ending == Ending::Exit(77) {
        return Err(Skipped(format!("no overlay can be mounted here: {}", output.stderr)).into());
    }
    let refused = output.stderr.contains("open for writing or maps it shared");
    ensure!(output.ending == Ending::Exit(125) && refused, "{output:?}");
    alone.is_untouched()
}

fn immutable(t: &Context) -> Result<()> {
    let alone = Alone::new(t)?;
    let chattr = |flag: &str| {
        let mut chattr = Command::new("chattr");
        chattr.arg(flag).arg(&alone.program);
        t.run(chattr)
    };
    for (letter, says) in [('i', "the attribute i (immutable)"), ('a', "the attribute a (append only)")] {
        if chattr(&format!("+{letter}"))?.ending != Ending::Exit(0) {
            return Err(Skipped("found a file system without attributes of chattr, needed one with them".into()).into());
        }
        let output = alone.shell(t, "exec \"$PAGELIFT\" align --relayout --force \"$@\"", &[&alone.program]);
        // Otherwise nobody could remove the folder.
        chattr(&format!("-{letter}"))?.success()?;
        let output = output?;
        ensure!(output.ending == Ending::Exit(125) && output.stderr.contains(says), "{output:?}");
        alone.is_untouched()?;
    }
    Ok(())
}

fn measured(t: &Context) -> Result<()> {
    /// A sum by SHA-1 (IMA_XATTR_DIGEST, security/integrity/integrity.h).
    const SUM: &str = "010123456789abcdef0123456789abcdef01234567";
    let alone = Alone::new(t)?;
    if !set_attribute(t, &alone.program, "security.ima", SUM)? {
        return Err(Skipped("found a file system without security.ima, needed one with it".into()).into());
    }
    for options in ["--relayout", "--relayout --check"] {
        let script = format!("exec \"$PAGELIFT\" align {options} \"$@\"");
        let output = alone.shell(t, &script, &[&alone.program])?;
        let said = format!("{}{}", output.stdout, output.stderr);
        ensure!(said.contains("found that it is measured or signed (security.ima)"), "{output:?}");
        ensure!(options.ends_with("check") || output.ending == Ending::Exit(125), "{output:?}");
        alone.is_untouched()?;
    }
    Ok(())
}
