//! The installed bill of materials names the packages in the installed files.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitCode;
use test_support::{Context, Need, Test, main_of, target_folder, test_case, workspace};

/// Built files, by their names in the bill.
const FILES: [(&str, &str); 6] = [
    ("pagelift", "release/pagelift"),
    ("pagelift-measure", "release/pagelift-measure"),
    ("pagelift-demo-program", "release/pagelift-demo-program"),
    ("libpagelift_heap.so", "release/libpagelift_heap.so"),
    ("libpagelift_trace.so", "release/libpagelift_trace.so"),
    ("libpagelift", "library/libpagelift.so"),
];
const BILL: &str = "release/pagelift.spdx.json";
const TEXTS: &str = "release/third-party.txt";

fn main() -> ExitCode {
    let built = |file: &str| Need::File(target_folder().join(file).to_string_lossy().into_owned());
    let mut tests: Vec<Test> = vec![test_case("bill/agrees_with_the_lock", vec![built(BILL)], agrees_with_the_lock)];
    let needs = vec![built(BILL), built(TEXTS)];
    tests.push(test_case("bill/each_crate_has_the_texts_of_its_licences", needs, has_texts));
    for (name, file) in FILES {
        let needs = vec![built(BILL), built(file)];
        tests.push(test_case(format!("bill/names_every_crate_in/{name}"), needs, move |t| every_crate(t, name, file)));
    }
    main_of(tests)
}

/// The bill: names and versions of packages by id, their checksums, and the packages that each file links.
struct Bill {
    packages: BTreeMap<String, (String, Option<String>)>,
    links: BTreeSet<(String, String)>,
}

fn text(value: &Value, field: &str) -> Result<String> {
    Ok(value[field].as_str().with_context(|| format!("no {field} in {value}"))?.to_owned())
}

fn bill() -> Result<Bill> {
    let document: Value = serde_json::from_str(&fs::read_to_string(target_folder().join(BILL))?)?;
    ensure!(text(&document, "spdxVersion")? == "SPDX-2.3", "not SPDX 2.3");
    let mut packages = BTreeMap::new();
    for package in document["packages"].as_array().context("no packages")? {
        let name = format!("{}-{}", text(package, "name")?, text(package, "versionInfo")?);
        let checksum = package["checksums"][0]["checksumValue"].as_str().map(str::to_owned);
        ensure!(!text(package, "licenseDeclared")?.is_empty(), "{name} has no licence");
        let before = packages.insert(text(package, "SPDXID")?, (name.clone(), checksum));
        ensure!(before.is_none(), "{name} has the id of another package");
    }
    let name_of =
        |id: String| -> Result<String> { Ok(packages.get(&id).with_context(|| format!("no package {id}"))?.0.clone()) };
    let mut links = BTreeSet::new();
    for relation in document["relationships"].as_array().context("no relationships")? {
        if text(relation, "relationshipType")? == "STATIC_LINK" {
            links.insert((name_of(text(relation, "spdxElementId")?)?, name_of(text(relation, "relatedSpdxElement")?)?));
        }
    }
    Ok(Bill { packages, links })
}

/// Each crate from outside of this workspace has a licence text, and so has the standard library.
fn has_texts(_: &Context) -> Result<()> {
    let texts = fs::read_to_string(target_folder().join(TEXTS))?;
    let heads = texts.lines().filter_map(|line| line.strip_prefix("Text ")?.split_once(", of "));
    let owners: BTreeSet<String> =
        heads.flat_map(|(_, owners)| owners.split(", ")).map(|owner| owner.replace(' ', "-")).collect();
    let archived: BTreeSet<String> =
        bill()?.packages.into_values().filter_map(|(name, checksum)| checksum.map(|_| name)).collect();
    let missing: Vec<_> = archived.difference(&owners).collect();
    ensure!(missing.is_empty() && archived.len() > 10, "no text for {missing:?} of {} crates", archived.len());
    ensure!(owners.iter().any(|owner| owner.starts_with("Rust's-standard-library")), "no text for Rust itself");
    for words in ["Permission is hereby granted, free of charge", "TERMS AND CONDITIONS FOR USE, REPRODUCTION"] {
        ensure!(texts.contains(words), "no licence says: {words}");
    }
    Ok(())
}

/// The compiler writes the source path of code into its output: into debug information, and into the locations that
/// panics name.
fn every_crate(_: &Context, name: &str, file: &str) -> Result<()> {
    const SOURCES: &[u8] = b"registry/src/";
    let bytes = fs::read(target_folder().join(file))?;
    let mut found = BTreeSet::new();
    for at in bytes.windows(SOURCES.len()).enumerate().filter(|(_, window)| *window == SOURCES).map(|(at, _)| at) {
        let path = &bytes[at + SOURCES.len()..bytes.len().min(at + 256)];
        if let Some(folder) = path.split(|&byte| byte == b'/' || byte == 0).nth(1) {
            found.insert(String::from_utf8_lossy(folder).into_owned());
        }
    }
    let bill = bill()?;
    let version = bill.packages.values().find_map(|(package, _)| package.strip_prefix(&format!("{name}-")));
    let own = format!("{name}-{}", version.with_context(|| format!("the bill has no {name}"))?);
    let linked: BTreeSet<String> =
        bill.links.iter().filter(|(from, _)| *from == own).map(|(_, to)| to.clone()).collect();
    let missing: Vec<&String> = found.difference(&linked).collect();
    ensure!(missing.is_empty(), "linked into {name}, but not in the bill: {missing:?}");
    // The library has no debug information, and little of its code can panic.
    let expected = if name == "pagelift" { 20 } else { 1 };
    ensure!(linked.len() >= expected, "the bill has only {linked:?} for {name}");
    ensure!(name != "pagelift" || found.len() >= expected, "only {found:?} were found in {name}");
    Ok(())
}

fn agrees_with_the_lock(_: &Context) -> Result<()> {
    let lock = fs::read_to_string(workspace().join("Cargo.lock"))?;
    let mut locked = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")))?;
            Some(line.trim_matches('"').to_owned())
        };
        let (name, version) = (field("name").context("no name")?, field("version").context("no version")?);
        locked.insert(format!("{name}-{version}"), field("checksum"));
    }
    let bill = bill()?;
    let crates = bill.packages.iter().filter(|(id, _)| id.starts_with("SPDXRef-Crate-"));
    let mut checked = 0;
    for (_, (name, checksum)) in crates {
        ensure!(locked.get(name) == Some(checksum), "{name}: {checksum:?} in the bill, not so in Cargo.lock");
        checked += usize::from(checksum.is_some());
    }
    ensure!(checked >= 20, "only {checked} checksums");
    Ok(())
}
