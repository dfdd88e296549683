//! A program with everything that its exec needs.
//!
//! `execvp` searches PATH, allocates memory and depends on `errno`, which `launch.rs` shares with the helper at that
//! moment. Here the work has two parts: all memory is allocated first, and the execution makes system calls only.

use linux::bare::{self, ErrorNumber};
use std::ffi::{CStr, CString, c_char};
use std::ptr::null;

/// Runs a file of a format that the kernel does not know, as all shells do.
const SHELL: &CStr = c"/bin/sh";

/// The search path where PATH is not set, as in glibc.
const USUAL_PATH: &[u8] = b"/bin:/usr/bin";

unsafe extern "C" {
    /// The environment (environ(7)).
    static environ: *const *const c_char;
}

/// A program to execute: its candidate files, arguments and environment.
pub struct Program {
    candidates: Vec<Candidate>,
    arguments: Pointers,
    environment: Option<Pointers>,
}

/// A file that may be the program, and the arguments with which the shell would run it.
struct Candidate {
    path: CString,
    by_shell: Vec<*const c_char>,
}

/// Strings with an array of pointers to them, the last one null.
struct Pointers {
    /// Owns what the pointers point to.
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Pointers {
    fn to(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([null()]).collect();
        Self { _strings: strings, pointers }
    }
}

impl Program {
    /// Finds the program as `execvp` does: the first word is its name, and PATH is this process's.
    pub fn named(words: Vec<CString>) -> Self {
        Self::called(None, words)
    }

    /// Like [`Program::named`], with another `argv[0]` than the first word.
    pub fn called(argv0: Option<CString>, mut words: Vec<CString>) -> Self {
        let name = words.first().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let path = std::env::var_os("PATH").map(std::os::unix::ffi::OsStringExt::into_vec);
        if let (Some(argv0), Some(first)) = (argv0, words.first_mut()) {
            *first = argv0;
        }
        let arguments = Pointers::to(words);
        let candidates = files(&name, path.as_deref().unwrap_or(USUAL_PATH))
            .into_iter()
            .map(|path| {
                // The name of the shell, the file, and the arguments with their null pointer.
                let own = arguments.pointers.get(1..).filter(|own| !own.is_empty()).unwrap_or(&[null()]);
                let by_shell = [SHELL.as_ptr(), path.as_ptr()].into_iter().chain(own.iter().copied()).collect();
                Candidate { path, by_shell }
            })
            .collect();
        Self { candidates, arguments, environment: None }
    }

    /// Sets the environment. The default is this process's.
    pub fn set_environment(&mut self, environment: Vec<CString>) {
        self.environment = Some(Pointers::to(environment));
    }

    /// Executes the program. Returns only on failure, and touches neither the heap nor `errno`.
    ///
    /// # Safety
    /// Unless an environment was set, this process's environment (environ(7)) does not change until the call returns.
    pub unsafe fn execute(&self) -> ErrorNumber {
        let environment = match &self.environment {
            Some(environment) => environment.pointers.as_ptr(),
            // SAFETY:
            // - the C library keeps it, with its null pointer, and nothing changes it: the caller's promise.
            None => unsafe { environ },
        };
        let (mut denied, mut last) = (false, libc::ENOENT);
        for candidate in &self.candidates {
            // SAFETY:
            // - both arrays end with a null pointer; the arguments' strings are owned by `self`, the environment's by
            //   `self` or the C library.
            last = unsafe { candidate.execute(self.arguments.pointers.as_ptr(), environment) };
            match last {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
                // The file exists and cannot be executed.
                _ => return last,
            }
        }
        if denied { libc::EACCES } else { last }
    }
}

impl Candidate {
    /// Executes the file, or has the shell run it.
    ///
    /// # Safety
    /// Both are arrays of pointers to strings, each with a null pointer behind the last.
    unsafe fn execute(&self, arguments: *const *const c_char, environment: *const *const c_char) -> ErrorNumber {
        // SAFETY:
        // - `arguments` and `environment`: the caller's promise.
        // - `by_shell` ends with a null pointer, and its strings are owned by the `Program` that contains this
        //   candidate.
        unsafe {
            match bare::execute(&self.path, arguments, environment) {
                libc::ENOEXEC => bare::execute(SHELL, self.by_shell.as_ptr(), environment),
                number => number,
            }
        }
    }
}

/// Returns the files to which a name may refer, in the order of PATH.
fn files(name: &[u8], path: &[u8]) -> Vec<CString> {
    let file = |bytes: Vec<u8>| CString::new(bytes).ok();
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return file(name.to_vec()).into_iter().collect();
    }
    let folders = path.split(|&byte| byte == b':');
    // An empty entry is the working directory.
    let within = |folder: &[u8]| if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() };
    folders.filter_map(|folder| file(within(folder))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, path: &str) -> Vec<String> {
        files(name.as_bytes(), path.as_bytes()).into_iter().map(|file| file.into_string().unwrap()).collect()
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        assert_eq!(found("./tool", "/bin"), ["./tool"]);
        assert_eq!(found("", "/bin"), [""; 0]);
    }

    #[test]
    fn a_name_is_looked_for_in_all_folders() {
        assert_eq!(found("tool", "/bin:/usr/bin"), ["/bin/tool", "/usr/bin/tool"]);
        assert_eq!(found("tool", ":/bin:"), ["tool", "/bin/tool", "tool"]);
    }

    #[test]
    fn a_program_can_be_called_by_another_name() {
        let program = Program::called(Some(c"-other".to_owned()), vec![c"/tmp/tool".to_owned(), c"word".to_owned()]);
        assert_eq!(program.candidates[0].path.as_c_str(), c"/tmp/tool");
        let words: Vec<_> = program.arguments._strings.iter().map(|word| word.as_c_str()).collect();
        assert_eq!(words, [c"-other", c"word"]);
    }

    #[test]
    fn the_shell_gets_the_file_and_the_arguments() {
        let program = Program::named(vec![c"/tmp/tool".to_owned(), c"word".to_owned()]);
        let words = &program.candidates[0].by_shell;
        assert_eq!(words.len(), 4);
        assert!(words[3].is_null());
        // SAFETY:
        // - the first three point to strings that `program` owns.
        let text = |index: usize| unsafe { CStr::from_ptr(words[index]) };
        assert_eq!([text(0), text(1), text(2)], [SHELL, c"/tmp/tool", c"word"]);
    }

    #[test]
    fn the_error_of_an_exec_is_returned() {
        for (file, number) in [(c"/nowhere/tool", libc::ENOENT), (c"", libc::ENOENT), (c"/etc/passwd", libc::EACCES)] {
            let mut program = Program::named(vec![file.to_owned()]);
            program.set_environment(Vec::new());
            // SAFETY:
            // - an environment was set.
            assert_eq!(unsafe { program.execute() }, number);
        }
    }
}
