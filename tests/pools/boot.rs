//! Persistent reservations: the commands of the systemd unit, run as systemd runs them, and several files together.

use crate::{count, pool, short};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use test_support::{Context, Ending, Need, Output, Session, Skipped, Test, default_huge_page, meminfo, test_case};

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Root, Need::Pool(0)];
    let python = || [needs(), vec![Need::Command("python3".into())]].concat();
    vec![
        test_case("a_unit_that_is_restarted_takes_its_pages_in_use_again", python(), restarted),
        test_case("a_unit_restarts_without_its_record", python(), restarted_without_a_record),
        test_case("a_unit_that_got_some_pages_adds_the_others", needs(), started_in_part),
        test_case("install_refuses_what_would_be_ignored", Vec::new(), installed_twice),
    ]
}

/// The commands of a unit, and their record, which is removed with this value.
struct Unit {
    start: String,
    stop: String,
    record: PathBuf,
}

impl Unit {
    fn new(t: &Context, name: &str, request: &str) -> Result<Self> {
        let name = format!("test-{}-{name}", std::process::id());
        let text = pool(t, &["plan", "--print", "systemd", "--name", &name, request])?.success()?.stdout;
        let command = |key: &str| -> Result<String> {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            Ok(line.with_context(|| format!("no {key} in {text}"))?.to_owned())
        };
        let record = PathBuf::from(format!("/run/pagelift-pool-{name}.record"));
        Ok(Self { start: command("ExecStart=")?, stop: command("ExecStop=")?, record })
    }

    fn run(&self, t: &Context, command: &str) -> Result<Output> {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().context("no program")?);
        command.args(words);
        t.run(command)
    }

    fn start(&self, t: &Context) -> Result<Output> {
        self.run(t, &self.start)
    }

    fn stop(&self, t: &Context) -> Result<Output> {
        self.run(t, &self.stop)?.success()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.record);
    }
}

const PAGES: u64 = 4;

/// Maps this number of pool pages, touches every page, and waits.
const USER: &str = "import mmap, sys
page, pages = int(sys.argv[1]), int(sys.argv[2])
memory = mmap.mmap(-1, page * pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
for index in range(pages):
    memory[index * page] = 1
print('ready', flush=True)
sys.stdin.read()
";

fn user_of_all(t: &Context) -> Result<Session> {
    let mut python = Command::new("python3");
    python.args(["-c", USER, &default_huge_page()?.bytes().to_string(), &PAGES.to_string()]);
    let session = t.session(python)?;
    session.wait_for_line("ready")?;
    ensure!(t.pool()?.free()? == 0, "not all pages are in use");
    Ok(session)
}

/// All pages of the pool, and the surplus ones.
fn counts() -> Result<(u64, u64)> {
    let page = default_huge_page()?;
    Ok((count(page, "nr_hugepages")?, count(page, "surplus_hugepages")?))
}

fn restarted(t: &Context) -> Result<()> {
    let (before, _) = counts()?;
    let unit = Unit::new(t, "restarted", &format!("{}:{PAGES}", short(default_huge_page()?)))?;
    unit.start(t)?.success()?;
    ensure!(counts()? == (before + PAGES, 0), "{:?}", counts()?);
    let session = user_of_all(t)?;
    let stopped = unit.stop(t)?;
    ensure!(counts()? == (before + PAGES, PAGES) && !stopped.stderr.contains("are used instead"), "{stopped:?}");
    let again = unit.start(t)?.success()?;
    ensure!(counts()? == (before + PAGES, 0), "{:?}, before {before}: {again:?}", counts()?);
    let other = unit.start(t)?.success()?;
    ensure!(counts()? == (before + PAGES, 0) && other.stdout.contains("added before"), "{other:?}");
    session.finish()?.success()?;
    t.pool()?.wait_until_free(PAGES)?;
    // As if the unit had never been started.
    unit.stop(t)?;
    ensure!(counts()? == (before, 0), "{:?}, before {before}", counts()?);
    unit.stop(t)?;
    ensure!(counts()? == (before, 0), "{:?}, before {before}", counts()?);
    Ok(())
}

/// As after an upgrade from a unit that recorded nothing.
fn restarted_without_a_record(t: &Context) -> Result<()> {
    let request = format!("{}:{PAGES}", short(default_huge_page()?));
    for damage in ["removed", "emptied", "overwritten"] {
        let (before, _) = counts()?;
        let unit = Unit::new(t, damage, &request)?;
        unit.start(t)?.success()?;
        let session = user_of_all(t)?;
        match damage {
            "removed" => fs::remove_file(&unit.record)?,
            "emptied" => fs::write(&unit.record, "")?,
            _ => fs::write(&unit.record, "nothing that is understood\n")?,
        }
        let stopped = unit.stop(t)?;
        ensure!(stopped.stderr.contains("are used instead"), "{damage}: {stopped:?}");
        unit.start(t)?.success()?;
        ensure!(counts()? == (before + PAGES, 0), "{damage}: {:?}, before {before}", counts()?);
        session.finish()?.success()?;
        t.pool()?.wait_until_free(PAGES)?;
        unit.stop(t)?;
        ensure!(counts()? == (before, 0), "{damage}: {:?}, before {before}", counts()?);
    }
    Ok(())
}

/// More pages than the test leaves memory for; about a quarter would fit.
const MANY: u64 = 64;

/// Limit of starts that get all pages because other processes have returned memory meanwhile.
const MOST_STARTS: u32 = 10;

/// Starts the unit while too little memory may be taken for all pages. Returns the output of the start that got some.
fn start_in_part(t: &Context, unit: &Unit, before: u64) -> Result<Output> {
    for _ in 0..MOST_STARTS {
        let available = meminfo("MemAvailable").context("no MemAvailable")?;
        let floor = available.saturating_sub(MANY / 4 * default_huge_page()?.bytes());
        let output = unit.run(t, &format!("{} --keep-free={floor}", unit.start))?;
        let pages = counts()?.0;
        if output.ending != Ending::Exit(0) {
            ensure!(output.ending == Ending::Exit(125) && pages < before + MANY, "{pages} pages, {output:?}");
            return Ok(output);
        }
        ensure!(pages == before + MANY, "{pages} pages, before {before}: {output:?}");
        unit.stop(t)?;
        ensure!(counts()? == (before, 0), "{:?}, before {before}", counts()?);
    }
    bail!("{MOST_STARTS} starts got all pages although memory was to be kept free")
}

fn started_in_part(t: &Context) -> Result<()> {
    let page = default_huge_page()?;
    let (before, _) = counts()?;
    let unit = Unit::new(t, "part", &format!("{}:{MANY}", short(page)))?;
    let some = start_in_part(t, &unit, before)?;
    let others = unit.start(t)?;
    if others.ending != Ending::Exit(0) {
        ensure!(counts()?.0 < before + MANY, "{others:?}");
        return Err(Skipped("memory is in pieces".to_owned()).into());
    }
    ensure!(counts()? == (before + MANY, 0), "{:?}, before {before}: {some:?} {others:?}", counts()?);
    unit.stop(t)?;
    ensure!(counts()? == (before, 0), "{:?}, before {before}", counts()?);
    Ok(())
}

fn installed_twice(t: &Context) -> Result<()> {
    let root = t.folder().display().to_string();
    let install = |name: &str, how: &str, request: &str| {
        pool(t, &["plan", "--root", &root, "--name", name, "--install", how, request])
    };
    let refuses = |output: Output, words: &[&str]| {
        ensure!(output.ending == Ending::Exit(125), "{output:?}");
        words.iter().try_for_each(|word| {
            ensure!(output.stderr.contains(word), "{word} is missing: {output:?}");
            Ok(())
        })
    };
    install("a", "grub", "1G:2")?.success()?;
    let uninstall = format!("fix: `pagelift pool plan --uninstall --name a --root {root}`");
    let words = ["/etc/default/grub.d/60-pagelift-pool-a.cfg", "`hugepagesz=1G`", &uninstall, "--install systemd"];
    refuses(install("b", "grub", "1G:3")?, &words)?;
    install("b", "grub", "2M:8")?.success()?;
    refuses(install("c", "grub", "2M:8")?, &["60-pagelift-pool-b.cfg"])?;
    install("c", "systemd", "1G:3")?.success()?;
    // Files of other authors count, too.
    fs::remove_dir_all(t.folder().join("etc/default"))?;
    fs::create_dir_all(t.folder().join("etc/default"))?;
    fs::write(t.folder().join("etc/default/grub"), "# hugepagesz=2M\nGRUB_CMDLINE_LINUX='ro hugetlb_cma=2G'\n")?;
    refuses(install("d", "grub", "1G:1")?, &["found `hugetlb_cma=2G` in", "take it out of", "/etc/default/grub"])?;
    install("d", "grub", "2M:8")?.success()?;
    // The last file sets all pages.
    let default = short(default_huge_page()?);
    install("e", "sysctl", &format!("{default}:8"))?.success()?;
    refuses(
        install("f", "sysctl", &format!("{default}:3"))?,
        &["60-pagelift-pool-e.conf", "the last file that sets it"],
    )
}
