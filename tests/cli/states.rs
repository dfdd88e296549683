//! One state, one verdict: processes in states that the kernel and Pagelift have made, and the words of each command about
//! them. The table of a state has a row for each command.

use crate::{THP_MODE, alone, needs_thp};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_support::{Context, Need, Program, Session, Setting, Test, mebibytes, test_case};

/// Bytes of the pool that serve any lift of the program.
const ENOUGH: u64 = 64 << 20;
/// Bytes of the pool that do not suffice for the constants, which are lifted as a whole.
const TOO_FEW: u64 = 4 << 20;
const OFF: &str = "off";

/// A state of a process, and the way into it.
struct State {
    name: &'static str,
    /// Free bytes in the pool.
    pool: u64,
    /// The machine's mode of transparent huge pages while the commands look.
    thp: &'static str,
    /// An argument of the program.
    argument: &'static str,
    /// Commands of Pagelift, each with the number of the process at its end.
    before: &'static [&'static str],
    /// A lift would put something on huge pages.
    adds: bool,
}

const PLAIN: State = State { name: "plain", pool: 0, thp: "madvise", argument: "", before: &[], adds: true };

const STATES: [State; 13] = [
    PLAIN,
    State { name: "lifted", before: &["attach"], adds: false, ..PLAIN },
    State { name: "restored", before: &["attach", "detach"], ..PLAIN },
    State { name: "on_the_pool", pool: ENOUGH, before: &["attach --pages hugetlb"], adds: false, ..PLAIN },
    State { name: "heap_collapsed", before: &["attach --heap=thp"], adds: false, ..PLAIN },
    State { name: "heap_collapsed_alone", before: &["attach --lift anon"], ..PLAIN },
    State { name: "restored_but_for_the_heap", before: &["attach --heap=thp", "detach"], ..PLAIN },
    State { name: "switched_off_by_the_program", argument: OFF, ..PLAIN },
    State { name: "switched_off_by_the_program_and_lifted", argument: OFF, before: &["attach"], adds: false, ..PLAIN },
    State { name: "never", thp: "never", adds: false, ..PLAIN },
    State { name: "never_and_a_pool", thp: "never", pool: ENOUGH, ..PLAIN },
    State { name: "never_and_a_pool_too_small", thp: "never", pool: TOO_FEW, adds: false, ..PLAIN },
    State { name: "never_but_lifted_before", thp: "never", before: &["attach"], adds: false, ..PLAIN },
];

/// A test for each state.
pub fn tests() -> Vec<Test> {
    let needs = |pool| vec![Need::Root, Need::Pool(pool), Need::File(THP_MODE.into()), Need::Command("gcc".into())];
    let test = |state: State| {
        let name = format!("one_state_has_one_verdict/{}", state.name);
        test_case(name, needs(state.pool), move |t| agree(t, &state))
    };
    STATES.into_iter().map(test).collect()
}

fn agree(t: &Context, state: &State) -> Result<()> {
    let _alone = alone();
    needs_thp()?;
    let _at_rest = Setting::khugepaged_at_rest()?;
    let mut command = Program::named("cli/has_constants_and_heap.c")?.command()?;
    command.args(Some(state.argument).filter(|argument| !argument.is_empty()));
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    for words in state.before {
        run(t, words, &session)?;
    }
    let mode = Setting::change(THP_MODE, state.thp)?;
    let said = Said::of(t, &session)?;
    let outcome = said.check(state);
    t.note(said.table(state.name));
    outcome.with_context(|| said.table(state.name))?;
    // A lift does what was foreseen.
    let after = run(t, "attach", &session).and_then(|_| first_line(t, "status", &session))?;
    ensure!(huge_of(&after)? == said.huge + said.added()?, "after a lift: {after}\n{}", said.table(state.name));
    drop(mode);
    session.send("\n")?;
    session.finish()?.success().map(drop)
}

/// Runs a command with the number of the process at its end. Refusals that the state brings about are no error.
fn run(t: &Context, words: &str, session: &Session) -> Result<String> {
    let pid = session.pid().to_string();
    let words: Vec<&str> = words.split(' ').chain([pid.as_str()]).collect();
    Ok(t.run(t.pagelift(&words)?)?.success()?.stdout)
}

fn first_line(t: &Context, words: &str, session: &Session) -> Result<String> {
    Ok(run(t, words, session)?.lines().next().unwrap_or_default().to_owned())
}

/// The words of each command about one process.
struct Said {
    status: String,
    inspect: String,
    doctor: String,
    /// The command that doctor recommends.
    recommended: Option<String>,
    dry_run: String,
    /// MiB on huge pages.
    huge: f64,
}

impl Said {
    fn of(t: &Context, session: &Session) -> Result<Self> {
        let output = t.run(t.pagelift(&["doctor", "--json", &session.pid().to_string()])?)?;
        let doctor: Value = serde_json::from_str(&output.stdout).with_context(|| output.stderr.clone())?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let status = first_line(t, "status", session)?;
        Ok(Self {
            huge: huge_of(&status)?,
            status,
            inspect: first_line(t, "inspect", session)?,
            doctor: text(&doctor["verdict"]["summary"]).context("no verdict")?,
            recommended: text(&doctor["verdict"]["run"]),
            dry_run: first_line(t, "attach --dry-run", session)?,
        })
    }

    /// A row for each command.
    fn table(&self, state: &str) -> String {
        let Self { status, inspect, doctor, recommended, dry_run, .. } = self;
        let recommended = recommended.as_deref().unwrap_or("nothing");
        format!(
            "{state}\n  status            {status}\n  inspect           {inspect}\n  doctor            {doctor}\n  \
             doctor recommends {recommended}\n  attach --dry-run  {dry_run}"
        )
    }

    /// MiB that a lift would add, in the words of `inspect`.
    fn added(&self) -> Result<f64> {
        match self.inspect.split_once("a lift would add ") {
            Some((_, rest)) if !rest.starts_with("nothing") => mebibytes(rest),
            _ => Ok(0.0),
        }
    }

    fn check(&self, state: &State) -> Result<()> {
        // The resident bytes may change between two commands, but huge pages do not.
        for words in [&self.inspect, &self.doctor] {
            ensure!(huge_of(words)? == self.huge, "other bytes on huge pages");
        }
        let foreseen = self.inspect.split_once(" resident on huge pages; ").context("inspect foresees nothing")?.1;
        ensure!(self.doctor.contains(foreseen), "doctor foresees something else");
        let added = self.added()?;
        ensure!((added > 0.0) == state.adds, "a lift would add {added} MiB");
        let planned = self.dry_run.split_once(": ").context("no plan")?.1;
        ensure!(mebibytes(planned)? == added, "the dry run plans something else");
        // Nothing is recommended that adds nothing; the heap and other memory need an option.
        let recommended = self.recommended.as_deref().unwrap_or_default();
        let asks_more = recommended.contains("--heap") || recommended.contains("--lift");
        ensure!(recommended.is_empty() || added > 0.0 || asks_more, "doctor recommends a lift of nothing");
        let is_left = self.doctor.starts_with("leave ") || self.doctor.contains("Leave it as it is");
        ensure!(!is_left || recommended.is_empty(), "doctor recommends a lift, and to leave it");
        ensure!(!(self.doctor.starts_with("leave ") && self.huge > 0.0), "nothing would be on huge pages");
        Ok(())
    }
}

/// MiB on huge pages, as a head line or a verdict has them: `NAME: BYTES of BYTES resident on huge pages`.
fn huge_of(text: &str) -> Result<f64> {
    let before = text.split_once(" resident on huge pages").with_context(|| format!("no head: {text}"))?.0;
    let huge = before.rsplit_once(": ").map_or(before, |(_, numbers)| numbers);
    mebibytes(huge)
}
