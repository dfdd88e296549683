//! Whole builds with their compilers lifted: the same files, byte for byte.

use anyhow::Result;
use std::time::Duration;
use test_support::{Context, GOOGLETEST, Need, SourceTree, Test, TestStore, lifted_programs, same_outputs, test_case};

const LIMIT: Duration = Duration::from_secs(600);

pub fn tests() -> Vec<Test> {
    let needs = |commands: &[&str]| {
        let commands = commands.iter().map(|name| Need::Command((*name).to_owned()));
        [Need::Root, Need::Thp].into_iter().chain(commands).collect::<Vec<_>>()
    };
    let of_cpp = [needs(&["make", "cmake", "g++"]), vec![Need::File(GOOGLETEST.to_owned())]].concat();
    vec![
        test_case("build_by_cargo/image", needs(&["cargo"]), |t| build(t, &SourceTree::of_rust(t.folder()))),
        test_case("build_by_make/image", of_cpp, |t| build(t, &SourceTree::of_cpp(t.folder()))),
    ]
}

fn build(t: &Context, tree: &SourceTree) -> Result<()> {
    let store = TestStore::of(t, "1G")?;
    tree.clear()?;
    t.run_within(tree.command(), LIMIT)?.success()?;
    let plain = tree.outputs()?;
    tree.clear()?;
    let report = t.folder().join("report.json");
    let options = ["-q", "--pages", "image", "--only", tree.compiler(), "--report", &report.to_string_lossy()];
    let mut command = t.lifted(&options, &tree.command())?;
    command.env("PAGELIFT_STORE", &store.path);
    t.run_within(command, LIMIT)?.success()?;
    same_outputs(&plain, &tree.outputs()?)?;
    let images = store.images(t)?.len();
    let lifted = lifted_programs(&report, tree.compiler())?;
    t.note(format!("{} files, {lifted} processes of {} on {images} images", plain.len(), tree.compiler()));
    Ok(())
}
