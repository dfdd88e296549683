//! perf, gdb, uprobes, addr2line and nm read an image like its source.

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Image, Need, Program, Session, Test, TestStore, Uprobe, copy_program, test_case};

const FUNCTION: &str = "spin_in_the_image";

pub fn tests() -> Vec<Test> {
    let needs =
        |command: &str| vec![Need::Root, Need::Thp, Need::Command("gcc".into()), Need::Command(command.to_owned())];
    vec![
        test_case("nm_and_addr2line_read_an_image", needs("addr2line"), nm_and_addr2line),
        test_case("readelf_finds_nothing_wrong", needs("readelf"), readelf),
        test_case("gdb_reads_an_image", needs("gdb"), gdb_reads),
        test_case("gdb_stops_in_an_image", needs("gdb"), gdb_stops),
        test_case("perf_names_functions_of_an_image", needs("perf"), perf_report),
        test_case("uprobes_fire_in_an_image", needs("gcc"), uprobe),
    ]
}

struct InPlace {
    _store: TestStore,
    file: PathBuf,
    image: Image,
}

impl InPlace {
    fn new(t: &Context) -> Result<Self> {
        let store = TestStore::of(t, "256M")?;
        // A separate copy: `perf record` links sampled files into its cache of build-ids, which changes their times.
        let file = t.folder().join("image_runs_in_place");
        copy_program(t, &Program::named("images/image_runs_in_place.c")?.build()?, &file)?;
        let image = store.add(t, &file)?;
        Ok(Self { _store: store, file, image })
    }

    /// The command that runs the program from its image.
    fn command(&self) -> Result<Command> {
        let ranges = self.image.ranges(&self.file)?;
        let address = address_of(&self.file)?;
        let holds = |address: u64| ranges.iter().find(|r| r.execute && address - r.address < r.length);
        let range = holds(address).with_context(|| format!("{address:#x} lies in no whole huge page: {ranges:x?}"))?;
        let mut command = Command::new(&self.file);
        command.arg(&self.image.path);
        for number in [range.image_offset, range.address, range.length] {
            command.arg(number.to_string());
        }
        Ok(command)
    }

    /// The program, waiting after it has mapped its image.
    fn started(&self, t: &Context) -> Result<Session> {
        let session = t.session(self.command()?)?;
        session.wait_for_line("ready")?;
        let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
        ensure!(maps.contains(&self.image.path.display().to_string()), "no mapping of the image:\n{maps}");
        Ok(session)
    }

    /// The function's offset in the image.
    fn offset(&self) -> Result<u64> {
        let address = address_space::Address(address_of(&self.file)?);
        self.image.elf()?.offset_of_address(address).context("the function is not in the image")
    }
}

fn address_of(file: &Path) -> Result<u64> {
    let output = Command::new("nm").arg(file).output()?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().find(|line| line.ends_with(&format!(" {FUNCTION}"))).context("no such function")?;
    Ok(u64::from_str_radix(line.split(' ').next().unwrap_or_default(), 16)?)
}

fn same_output(t: &Context, words: &[&str], one: &Path, other: &Path) -> Result<String> {
    let run = |file: &Path| -> Result<String> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(file);
        Ok(t.run(command)?.success()?.stdout.replace(&file.display().to_string(), "FILE"))
    };
    let (text, copy) = (run(one)?, run(other)?);
    ensure!(text == copy && text.len() > 1, "{words:?} prints\n{text}\nof the file, of the image\n{copy}");
    Ok(text)
}

fn nm_and_addr2line(t: &Context) -> Result<()> {
    let program = InPlace::new(t)?;
    same_output(t, &["nm"], &program.file, &program.image.path)?;
    let address = format!("{:#x}", address_of(&program.file)?);
    let text = same_output(t, &["addr2line", "-f", &address, "-e"], &program.file, &program.image.path)?;
    // The debug information is smaller than the program: it is in the image.
    ensure!(text.starts_with(FUNCTION) && text.contains("image_runs_in_place.c:"), "{text}");
    let notes = |file: &Path| -> Result<(Vec<String>, Vec<String>)> {
        let mut command = Command::new("readelf");
        command.arg("-nW").arg(file);
        let text = t.run(command)?.success()?.stdout;
        let lines = text.lines().filter(|line| !line.starts_with("File: ")).map(str::to_owned);
        Ok(lines.partition(|line| line.contains("Build ID: ")))
    };
    let ((id, others), (image_id, image_others)) = (notes(&program.file)?, notes(&program.image.path)?);
    ensure!(others == image_others, "notes {image_others:?}, of the file {others:?}");
    // perf must distinguish the files: their offsets differ.
    ensure!(id.len() == 1 && image_id.len() == 1 && id != image_id, "build-ids {id:?} and {image_id:?}");
    Ok(())
}

fn readelf(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "512M")?;
    for name in
        ["start/pie_by_default.c", "start/fixed_address_executable.c", "start/static_pie.c", "start/many_segments.c"]
    {
        let file = Program::named(name)?.build()?;
        let image = store.add(t, &file)?;
        let complaints = |file: &Path| -> Result<String> {
            let mut command = Command::new("readelf");
            command.args(["-aW"]).arg(file);
            Ok(t.run(command)?.success()?.stderr.replace(&file.display().to_string(), "FILE"))
        };
        let (plain, found) = (complaints(&file)?, complaints(&image.path)?);
        ensure!(plain == found, "{name}: readelf complains of the image\n{found}\nand of the file\n{plain}");
    }
    Ok(())
}

fn gdb(commands: &[&str]) -> Command {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    gdb
}

fn gdb_reads(t: &Context) -> Result<()> {
    let program = InPlace::new(t)?;
    let commands = [&format!("info line {FUNCTION}"), &format!("disassemble {FUNCTION}"), "info symbol main"];
    let text = |file: &Path| -> Result<String> {
        let mut gdb = gdb(&commands);
        gdb.arg(file);
        Ok(t.run(gdb)?.success()?.stdout)
    };
    let (file, image) = (text(&program.file)?, text(&program.image.path)?);
    ensure!(file == image && file.contains("End of assembler dump"), "gdb prints\n{file}\nof the image\n{image}");
    Ok(())
}

fn gdb_stops(t: &Context) -> Result<()> {
    let program = InPlace::new(t)?;
    let mut session = program.started(t)?;
    session.send("go on\n")?;
    let mut gdb = gdb(&[&format!("break {FUNCTION}"), "continue", "backtrace", "delete", "detach"]);
    gdb.arg("-p").arg(session.pid().to_string());
    let output = t.run(gdb)?.success()?;
    for word in [&format!("Breakpoint 1, {FUNCTION} (n="), "#1 ", "main ("] {
        ensure!(output.stdout.contains(word), "`{word}` is not shown:\n{}\n{}", output.stdout, output.stderr);
    }
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("done 1\n"), "{}", output.stdout);
    Ok(())
}

/// perf's cache already has the source, as after an earlier measurement of the plain program.
fn perf_report(t: &Context) -> Result<()> {
    let program = InPlace::new(t)?;
    let data = t.folder().join("perf.data");
    let perf = || {
        let mut command = Command::new("perf");
        command.arg("--buildid-dir").arg(t.folder().join("perf-cache"));
        command
    };
    let mut cache = perf();
    cache.args(["buildid-cache", "-a"]).arg(&program.file);
    t.run(cache)?.success()?;
    let mut command = perf();
    let own = program.command()?;
    command.args(["record", "-q", "-e", "cpu-clock:u", "-o"]).arg(&data).arg("--");
    command.arg(own.get_program()).args(own.get_args());
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    session.send("go on\n")?;
    session.finish()?.success()?;
    let mut report = perf();
    report.args(["report", "--stdio", "--sort", "dso,symbol", "-v", "-i"]).arg(&data);
    let text = t.run(report)?.success()?.stdout;
    let line = text.lines().find(|line| line.contains(FUNCTION));
    let line = line.with_context(|| format!("perf does not name the function:\n{text}"))?;
    ensure!(line.contains(&program.image.path.display().to_string()), "not from the image: {line}");
    let share: f64 = line.trim().split('%').next().unwrap_or_default().parse()?;
    ensure!(share > 80.0, "{line}");
    Ok(())
}

fn uprobe(t: &Context) -> Result<()> {
    let program = InPlace::new(t)?;
    let probe = Uprobe::new(t, &program.image.path, program.offset()?)?;
    let mut session = program.started(t)?;
    session.send("go on\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("done 1\n"), "{}", output.stdout);
    let hits = probe.hits()?;
    ensure!(hits > 3, "{hits} hits");
    Ok(())
}
