//! `pagelift-demo-program`: large scattered code, large initialised data and a large random-access table in bss.
//!
//! It represents a big server in `pagelift demo` and in the benchmarks: as a worker it runs bursts of work on command
//! and answers with their time and a checksum, which must not depend on its pages. It takes no action to get huge
//! pages.

mod code;
mod workloads;

use measure::worker::{Work, serve};
use std::io::{stdin, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workloads::DemoWork;

const USAGE: &str = "\
usage: pagelift-demo-program worker          bursts on command, over standard input and output
       pagelift-demo-program run [SECONDS]   runs all workloads for so long (default 10), then prints steps per second
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["worker"] => worker(),
        ["run"] => run(Duration::from_secs(10)),
        ["run", seconds] => match seconds.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()) {
            Some(time) => run(time),
            None => usage(&format!("`{seconds}` is no number of seconds")),
        },
        ["--help" | "-h"] => {
            print!("{USAGE}\n{}\n", workloads::describe());
            ExitCode::SUCCESS
        }
        _ => usage("a command is missing or not known"),
    }
}

fn usage(problem: &str) -> ExitCode {
    eprint!("pagelift-demo-program: {problem}\n{USAGE}");
    ExitCode::from(2)
}

fn worker() -> ExitCode {
    match serve(&mut DemoWork::prepare(), stdin().lock(), stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pagelift-demo-program: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(time: Duration) -> ExitCode {
    const STEPS: u64 = 20_000;
    let mut work = DemoWork::prepare();
    let names = work.workloads();
    println!("process {}, {} s of each: {}", std::process::id(), time.as_secs_f64(), names.join(", "));
    for (name, seed) in names.iter().zip(1u64..) {
        let (mut steps, mut checksum) = (0u64, 0u64);
        let started = Instant::now();
        while started.elapsed() < time {
            match work.run(name, STEPS, seed.wrapping_add(steps)) {
                Ok(result) => checksum ^= result,
                Err(problem) => return usage(&problem),
            }
            steps += STEPS;
        }
        println!("{name}: {:.0} steps/s, checksum {checksum:x}", steps as f64 / started.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}
