//! Servers under load are lifted and restored repeatedly: every answer is right, no connection is lost, and their exit
//! is unchanged.
//!
//! `PAGELIFT_ROUNDS` sets the number of rounds, for long runs, and prints the pauses:
//!
//!     PAGELIFT_ROUNDS=500 cargo test -p pagelift-tests --test live_servers -- mariadb

mod databases;
mod http;

use anyhow::{Context as _, Result, ensure};
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{
    Context, Need, Output, Program, Session, Test, TestStore, View, main_of, poll_until, test_case, tests_folder,
};

/// Time limit of a server, from its start to its end.
const LIFETIME: Duration = Duration::from_secs(3600);
const ROUNDS: &str = "PAGELIFT_ROUNDS";
const POOL: u64 = 64 << 20;

fn main() -> ExitCode {
    let mut tests = vec![
        test_case("a_thousand_threads", needs(&["gcc"]), thousand_threads),
        test_case("watch_lifts_what_is_loaded_later", needs(&["gcc", "python3"]), watch),
    ];
    tests.extend(http::tests());
    tests.extend(databases::tests());
    main_of(tests)
}

fn needs(commands: &[&str]) -> Vec<Need> {
    let commands = commands.iter().map(|name| Need::Command((*name).to_owned()));
    [Need::Root, Need::Thp].into_iter().chain(commands).collect()
}

/// One test for each source: transparent huge pages, the pool, and images.
fn from_each_source(name: &str, commands: &[&str], body: fn(&Context, &Lifting) -> Result<()>) -> Vec<Test> {
    let with_pool = [needs(commands), vec![Need::Pool(POOL)]].concat();
    vec![
        test_case(format!("{name}/thp"), needs(commands), move |t| body(t, &Lifting::by("thp"))),
        test_case(format!("{name}/hugetlb"), with_pool, move |t| body(t, &Lifting::by("hugetlb"))),
        test_case(format!("{name}/image"), needs(commands), move |t| {
            let store = TestStore::of(t, "1G")?;
            body(t, &Lifting { pages: "image", store: Some(&store) })
        }),
    ]
}

/// How a server is lifted.
struct Lifting<'a> {
    pages: &'a str,
    store: Option<&'a TestStore>,
}

impl<'a> Lifting<'a> {
    fn by(pages: &'a str) -> Self {
        Self { pages, store: None }
    }

    fn command(&self, t: &Context, words: &[&str]) -> Result<Command> {
        let mut command = t.pagelift(words)?;
        if let Some(store) = self.store {
            command.env("PAGELIFT_STORE", &store.path);
        }
        Ok(command)
    }

    /// Lifts once. Returns the longest pause of all threads, in milliseconds.
    fn attach(&self, t: &Context, pid: &str) -> Result<f64> {
        let text = quietly(self.command(t, &["attach", "--pages", self.pages, pid])?)?;
        ensure!(text.contains(" MiB on "), "{text}");
        longest_pause(&text)
    }

    fn detach(&self, t: &Context, pid: &str) -> Result<f64> {
        let text = quietly(self.command(t, &["detach", pid])?)?;
        ensure!(text.contains("back on the pages of their files"), "{text}");
        longest_pause(&text)
    }

    /// Lifts and restores for at least the number of rounds, and until `enough`.
    fn alternate(&self, t: &Context, pid: u32, mut enough: impl FnMut() -> Result<bool>) -> Result<()> {
        let pid = pid.to_string();
        let (mut attaches, mut detaches) = (Vec::new(), Vec::new());
        let least = rounds()?;
        while attaches.len() < least || !enough()? {
            let round = || format!("round {}", attaches.len());
            let (attach, detach) =
                (self.attach(t, &pid).with_context(round)?, self.detach(t, &pid).with_context(round)?);
            attaches.push(attach);
            detaches.push(detach);
        }
        let text = format!(
            "{} rounds; pauses in ms: attach {}, detach {}",
            attaches.len(),
            spread(attaches),
            spread(detaches)
        );
        say(t, &text);
        Ok(())
    }
}

/// Records a figure, and prints it if `PAGELIFT_ROUNDS` is set.
fn say(t: &Context, text: &str) {
    if std::env::var_os(ROUNDS).is_some() {
        println!("{text}");
    }
    t.note(text);
}

fn longest_pause(text: &str) -> Result<f64> {
    let pause = text.split("paused ").nth(1).and_then(|text| text.split(' ').next());
    Ok(pause.with_context(|| format!("no pause: {text}"))?.parse()?)
}

fn spread(mut pauses: Vec<f64>) -> String {
    pauses.sort_by(f64::total_cmp);
    let at = |share: usize| pauses.get((pauses.len() * share / 100).min(pauses.len().saturating_sub(1)));
    let [median, most, last] = [50, 95, 100].map(|share| at(share).copied().unwrap_or(0.0));
    format!("median {median:.1}, 95th percentile {most:.1}, longest {last:.1}")
}

fn rounds() -> Result<usize> {
    std::env::var(ROUNDS).map_or(Ok(5), |text| text.parse().with_context(|| format!("{ROUNDS} is no number")))
}

/// Returns a command's standard error. Its output is not stored, since there may be very many commands.
fn quietly(command: Command) -> Result<String> {
    Ok(Session::start(command, Duration::from_secs(240))?.finish()?.success()?.stderr)
}

/// The number after a word at the beginning of a line.
fn number_after(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}

fn finish(t: &Context, session: Session) -> Result<Output> {
    let output = session.finish()?;
    t.keep(&output);
    output.success()
}

fn thousand_threads(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/thousand_threads.c")?.command()?)?;
    session.wait_for_line("ready")?;
    for _ in 0..3 {
        let pid = session.pid().to_string();
        let attach = quietly(t.pagelift(&["attach", "--pages", "thp", &pid])?)?;
        ensure!(attach.contains(" MiB on ") && attach.contains("all 1001 threads"), "{attach}");
        t.note(attach.trim());
        t.note(quietly(t.pagelift(&["detach", &pid])?)?.trim());
    }
    session.send("\n")?;
    let output = finish(t, session)?;
    ensure!(output.stdout.ends_with("0 left, all went on\n"), "{}", output.stdout);
    Ok(())
}

/// A library of several huge pages that Python loads after the watch has begun.
fn watch(t: &Context) -> Result<()> {
    let library = t.folder().join("large.so");
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-O1", "-DCODE_PAGES=1700", "-o"]).arg(&library);
    compiler.arg("-I").arg(tests_folder().join("support/programs"));
    let source = t.folder().join("large.c");
    std::fs::write(
        &source,
        "#include \"ranges.h\"\nvoid check(void) { check_ranges(0); }\nlong sum(void) { return run_code(); }\n",
    )?;
    compiler.arg(&source);
    t.run(compiler)?.success()?;
    let mut python = Command::new("python3");
    let text = "import ctypes, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nlarge = ctypes.CDLL(sys.argv[1])\n\
                first = large.sum()\nprint('loaded', flush=True)\nsys.stdin.readline()\nassert large.sum() == first\n";
    python.args(["-c", text]).arg(&library);
    let mut session = t.session(python)?;
    session.wait_for_line("ready")?;
    let watcher = t.session(t.pagelift(&["attach", "--pages", "thp", "--watch", &session.pid().to_string()])?)?;
    watcher.wait_for_stderr("pagelift: ")?;
    session.send("\n")?;
    session.wait_for_line("loaded")?;
    let text = |view: &View| -> (u64, bool) {
        let own = view.usages.iter().filter(|u| u.mapping.path() == library.to_str());
        let rest: u64 = own.filter(|u| u.mapping.protection.execute).map(|u| u.mapping.range.len()).sum();
        (rest, view.huge_bytes() > 0)
    };
    poll_until(Duration::from_secs(120), "the library to be lifted", || {
        // Nearly all of its seven MiB of code no longer show the file.
        View::of(session.pid()).is_ok_and(|view| matches!(text(&view), (rest, true) if rest > 0 && rest < 4 << 20))
    })?;
    session.send("\n")?;
    finish(t, session)?;
    // It ends with the program that it watches.
    finish(t, watcher).map(drop)
}
