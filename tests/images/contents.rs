//! Images of real and of unusual programs contain exactly their bytes, at offsets that huge pages can map.

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Need, Program, Test, TestStore, test_case};

const PROGRAMS: [&str; 5] = [
    "start/fixed_address_executable.c",
    "start/many_segments.c",
    "start/pie_by_default.c",
    "start/segments_aligned_to_huge_pages.c",
    "start/static_pie.c",
];

pub fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    for program in PROGRAMS {
        let name = format!("image_of/{}", program.trim_end_matches(".c"));
        tests.push(test_case(name, needs(&[]), move |t| {
            of_file(t, &Program::named(program)?.build()?, &["--size", "1G"])
        }));
    }
    for file in ["/usr/sbin/mariadbd", "/usr/bin/python3.11", "/usr/bin/node"] {
        let name = format!("image_of{}", &file[file.rfind('/').unwrap_or(0)..]);
        tests.push(test_case(name, needs(&[Need::File(file.to_owned())]), move |t| {
            of_file(t, Path::new(file), &["--size", "1G"])
        }));
    }
    let rustc = [Need::Command("rustc".into())];
    tests.push(test_case("image_of/librustc_driver", needs(&rustc), |t| {
        of_file(t, &rustc_driver()?, &["--size", "1G"])
    }));
    let pool = [Need::Root, Need::Pool(64 << 20), Need::Command("gcc".into())];
    tests.push(test_case("image_on_hugetlbfs", pool.to_vec(), on_hugetlbfs));
    tests.push(test_case("coverage_is_what_the_kernel_says", needs(&[]), coverage_is_read));
    tests
}

fn needs(more: &[Need]) -> Vec<Need> {
    [&[Need::Root, Need::Thp, Need::Command("gcc".into())], more].concat()
}

fn rustc_driver() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output()?;
    let folder = Path::new(String::from_utf8(output.stdout)?.trim()).join("lib");
    let mut entries = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    entries.find(|path| path.display().to_string().contains("librustc_driver")).context("no librustc_driver")
}

fn of_file(t: &Context, file: &Path, options: &[&str]) -> Result<()> {
    let store = TestStore::with(t, options)?;
    let image = store.add(t, file)?;
    ensure!(image.path.file_name() == file.file_name(), "{} has another name", image.path.display());
    let (bytes, huge) = image.compare(t, file)?;
    t.note(format!("{bytes} bytes compared, {huge} of them huge"));
    let row = &store.images(t)?[0];
    let listed = |field: &str| row["coverage"][field].as_u64().with_context(|| format!("no {field} in {row}"));
    ensure!(listed("mappable")? >= bytes, "{row}: {bytes} bytes can be mapped");
    // The number of huge pages depends on the machine's memory, but all reports must agree.
    ensure!(huge == bytes || listed("huge")? < listed("mappable")?, "{huge} of {bytes} huge, but {row}");
    ensure!(row["source_state"] == "same" && row["source"] == file.display().to_string().as_str(), "{row}");
    ensure!(Some(store.used()?) >= row["memory"].as_u64(), "{row}, {} used", store.used()?);
    Ok(())
}

fn on_hugetlbfs(t: &Context) -> Result<()> {
    let page = t.pool()?.page();
    let free = t.pool()?.free()?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    {
        let store = TestStore::with(t, &["--hugetlbfs", "--page-size", &page.bytes().to_string()])?;
        store.image(t, "setup", &["--hugetlbfs"])?.success()?;
        let refused = store.image(t, "setup", &["--hugetlbfs", "--size", "1T"])?;
        ensure!(refused.stderr.contains("no limit, needed the same"), "{}", refused.stderr);
        let image = store.add(t, &file)?;
        let (bytes, huge) = image.compare(t, &file)?;
        ensure!(bytes == huge, "{huge} of {bytes} are huge");
        let taken = free - t.pool()?.free()?;
        ensure!(Some(taken * page.bytes()) == store.images(t)?[0]["memory"].as_u64(), "{taken} pages are taken");
        // Two pages too few for a second image of the same size.
        t.pool()?.resize(taken - 2)?;
        let copy = test_support::copy_of_a_program(t, "another")?;
        let output = store.image(t, "add", &[&copy.to_string_lossy()])?;
        ensure!(output.stderr.contains("the pool has too few pages"), "{}", output.stderr);
        ensure!(t.pool()?.free()? == taken - 2, "pages are lost: {} free", t.pool()?.free()?);
        ensure!(store.images(t)?.len() == 1, "half an image is left");
    }
    Ok(())
}

/// A hole in one huge page splits it: the list must show one huge page less.
fn coverage_is_read(t: &Context) -> Result<()> {
    let store = TestStore::of(t, "256M")?;
    let file = Program::named("start/pie_by_default.c")?.build()?;
    let image = store.add(t, &file)?;
    let huge = |t: &Context| -> Result<u64> {
        store.images(t)?[0]["coverage"]["huge"].as_u64().context("the kernel tells nothing")
    };
    let before = huge(t)?;
    ensure!(before > 0, "nothing is huge");
    let (_, page) = image.layout()?;
    let first = image.ranges(&file)?[0].image_offset;
    let mut punch = Command::new("fallocate");
    punch.args(["--punch-hole", "--offset", &first.to_string(), "--length", "4096"]).arg(&image.path);
    t.run(punch)?.success()?;
    let after = huge(t)?;
    ensure!(after == before - page.bytes(), "{before} bytes huge before, {after} after one page was split");
    Ok(())
}
