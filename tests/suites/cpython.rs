//! More of CPython's tests: those about processes, threads, memory, files, sockets and the interpreter's internals.

use crate::compare;
use test_support::{Need, PythonRun, PythonTests, Test, test_case};

const MODULES: [&str; 44] = [
    "test_asyncio",
    "test_atexit",
    "test_builtin",
    "test_capi",
    "test_cmd_line",
    "test_concurrent_futures",
    "test_ctypes",
    "test_decimal",
    "test_devpoll",
    "test_dict",
    "test_epoll",
    "test_eintr",
    "test_exceptions",
    "test_faulthandler",
    "test_fcntl",
    "test_fork1",
    "test_gc",
    "test_hashlib",
    "test_io",
    "test_json",
    "test_memoryio",
    "test_mmap",
    "test_multiprocessing_fork",
    "test_multiprocessing_main_handling",
    "test_os",
    "test_pickle",
    "test_poll",
    "test_posix",
    "test_pty",
    "test_queue",
    "test_resource",
    "test_select",
    "test_selectors",
    "test_signal",
    "test_socket",
    "test_subprocess",
    "test_tempfile",
    "test_thread",
    "test_threading",
    "test_threadsignals",
    "test_tracemalloc",
    "test_wait3",
    "test_wait4",
    "test_zlib",
];
const OPTIONS: [&str; 5] = ["--quiet", "--pages", "thp", "--edges", "merge-read-only"];

pub fn tests() -> Vec<Test> {
    let needs = || [PythonTests::needs(), vec![Need::Thp]].concat();
    let of_module = |module: &'static str| {
        test_case(format!("cpython/{module}"), needs(), move |t| {
            let tests = PythonTests { modules: &[module] };
            let plain = tests.start(t, "plain", PythonRun::Plain)?.finish(t)?.outcomes;
            let run = tests.start(t, "run", PythonRun::EachLifted(&OPTIONS))?.finish(t)?.outcomes;
            compare(&format!("cpython/{module}/run"), &plain, &run)?;
            let only = tests.start(t, "only", PythonRun::Followed(&OPTIONS))?.finish(t)?.outcomes;
            compare(&format!("cpython/{module}/only"), &plain, &only)
        })
    };
    MODULES.map(of_module).into()
}
