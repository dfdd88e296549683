//! Programs that the tests start.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A child that is killed when the test ends, however it ends.
pub struct Program(Child);

impl Program {
    /// Starts a program that copies its input to its output, as `cat` does. When it has copied something, the dynamic
    /// linker has done its work.
    pub fn start(command: &mut Command) -> Self {
        let mut program = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut echoed = [0; 2];
        program.0.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
        program.0.stdout.as_mut().unwrap().read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"x\n");
        program
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that is removed when the test ends, however it ends.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("observation-{name}-{}", own_pid()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn own_pid() -> i32 {
    std::process::id() as i32
}

/// Runs a tool of the C compiler's family, which a machine that builds Rust has.
pub fn tool<I: IntoIterator<Item: AsRef<OsStr>>>(name: &str, arguments: I) {
    let status = Command::new(name).args(arguments).status().unwrap_or_else(|e| panic!("needs the tool {name}: {e}"));
    assert!(status.success(), "{name} failed");
}

/// Builds the program that loses the files of its own mappings, with its library in the same folder.
pub fn build_on_anonymous_memory(directory: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let (library, program) = (directory.join("liblibrary_number.so"), directory.join("on_anonymous_memory"));
    let (library_source, source) = (sources.join("library_number.c"), sources.join("on_anonymous_memory.c"));
    tool("cc", [OsStr::new("-shared"), "-fPIC".as_ref(), "-o".as_ref(), library.as_ref(), library_source.as_ref()]);
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let flags: [&OsStr; 4] = ["-O1".as_ref(), "-Wl,--build-id".as_ref(), rpath.as_ref(), "-o".as_ref()];
    tool("cc", flags.into_iter().chain([program.as_ref(), source.as_ref(), library.as_ref()]));
    program
}
