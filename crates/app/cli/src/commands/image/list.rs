//! `pagelift image list`.

use crate::output::Output;
use crate::text::number::counted;
use crate::text::table::{align_right, table, trimmed};
use crate::text::unanswered;
use address_space::{PageSize, format_bytes};
use image_store::{FileSystem, Image, ImageCoverage, SourceState, Space, Store, Users};
use linux::nodes::has_several_nodes;
use process_view::{Unanswered, printable};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// The problem of a name that no image has.
const FOREIGN: &str = "not an image's name";

#[derive(Serialize)]
struct Listing {
    format: &'static str,
    version: u32,
    store: String,
    file_system: FileSystem,
    page_size: PageSize,
    space: Space,
    /// Lifts may make images.
    automatic: bool,
    images: Vec<Row>,
    /// Things in the store that are not images.
    damaged: Vec<Damaged>,
    /// Images that this user may not read.
    not_readable: u64,
    /// Processes that this user may not read, so that they are not among the users.
    processes_not_permitted: u64,
    /// Processes that do not answer, so that they are not among the users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unanswered: Vec<Unanswered>,
}

#[derive(Serialize)]
struct Row {
    image: String,
    source: String,
    source_state: SourceState,
    build_id: Option<String>,
    base_offset: u64,
    /// The NUMA node for which it is a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u32>,
    /// Bytes of its mappable pages on each NUMA node, as the kernel shows them; empty on a machine with one node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    nodes: BTreeMap<u32, u64>,
    size: u64,
    memory: u64,
    for_everybody: bool,
    /// Made without a request.
    automatic: bool,
    /// Seconds since it was last mapped, exact to a day; `None` if the store keeps no such times.
    #[serde(skip_serializing_if = "Option::is_none")]
    unused_seconds: Option<u64>,
    users: Vec<i32>,
    /// None if the kernel cannot report it.
    coverage: Option<ImageCoverage>,
}

#[derive(Serialize)]
struct Damaged {
    name: String,
    problem: &'static str,
}

/// Prints the images in the store.
pub fn run(store: &Store, json: bool) -> anyhow::Result<()> {
    let listing = read(store)?;
    let out = Output::Standard;
    if json {
        out.print_json(&listing)?;
    } else {
        out.print(&text(&listing))?;
    }
    Ok(())
}

fn read(store: &Store) -> anyhow::Result<Listing> {
    let found = store.list()?;
    let users = Users::read()?;
    let images = found.images.iter().map(|image| row(image, &users)).collect::<Result<_, _>>()?;
    let foreign = found.foreign.into_iter().map(|name| (name, FOREIGN));
    let damaged = found.damaged.into_iter().chain(foreign);
    let damaged = damaged.map(|(name, problem)| Damaged { name: printable(&name), problem });
    Ok(Listing {
        format: "pagelift-images",
        version: 1,
        store: store.path().display().to_string(),
        file_system: store.file_system(),
        page_size: store.page_size(),
        space: store.space()?,
        automatic: store.makes_automatic_images(),
        images,
        damaged: damaged.collect(),
        not_readable: found.not_readable,
        processes_not_permitted: users.not_permitted,
        unanswered: users.unanswered,
    })
}

fn row(image: &Image, users: &Users) -> anyhow::Result<Row> {
    Ok(Row {
        image: image.path().display().to_string(),
        source: image.source().display().to_string(),
        source_state: image.source_state(),
        build_id: image.key().build_id().map(str::to_owned),
        base_offset: image.layout().base_offset(),
        node: image.node(),
        nodes: if has_several_nodes() { image.bytes_on_nodes().unwrap_or_default() } else { BTreeMap::new() },
        size: image.size(),
        memory: image.memory()?,
        for_everybody: image.for_everybody(),
        automatic: image.is_automatic(),
        unused_seconds: image.last_use().and_then(|used| Some(SystemTime::now().duration_since(used).ok()?.as_secs())),
        users: users.of(image),
        coverage: image.coverage().ok(),
    })
}

const AUTOMATIC: &str = "root's lifts make images, too; to end that: pagelift image setup --automatic no\n";
const ONLY_ON_REQUEST: &str = "images only by `pagelift image add` (pagelift image setup --automatic no)\n";

fn text(listing: &Listing) -> String {
    let Listing { store, file_system, page_size, space, images, .. } = listing;
    let kind = match file_system {
        FileSystem::Tmpfs => "tmpfs",
        FileSystem::Hugetlbfs => "hugetlbfs",
    };
    let room = match (space.free, space.size) {
        (Some(free), Some(size)) => format!(", {} of {} free", format_bytes(free), format_bytes(size)),
        _ => String::new(),
    };
    let mut text = format!("{store}: {kind} of {page_size} pages{room}\n");
    if images.is_empty() {
        text += "no images; `pagelift image add FILE` makes one\n";
    } else {
        text += &format!("\n{}\n{}\n", rows(images), total(images, space));
    }
    text += if listing.automatic { AUTOMATIC } else { ONLY_ON_REQUEST };
    for Damaged { name, problem } in &listing.damaged {
        let then = if *problem == FOREIGN { "keeps" } else { "removes" };
        text += &format!("note: {name}: {problem}; `pagelift image gc` {then} it\n");
    }
    if listing.not_readable > 0 {
        text += &format!("note: {} for root only\n", counted(listing.not_readable, "image"));
    }
    text += &unanswered::not_permitted(listing.processes_not_permitted, "image list");
    text + &unanswered::notes(&listing.unanswered)
}

/// The memory of all images and of automatic ones, with the limit for the latter.
fn total(images: &[Row], space: &Space) -> String {
    let bytes = |images: &[&Row]| format_bytes(images.iter().map(|image| image.memory).sum());
    let all: Vec<&Row> = images.iter().collect();
    let automatic: Vec<&Row> = images.iter().filter(|image| image.automatic).collect();
    let limit = space.most_automatic().map_or_else(String::new, |most| format!(" of at most {}", format_bytes(most)));
    format!(
        "{}, {}; without a request: {}, {}{limit}",
        counted(all.len() as u64, "image"),
        bytes(&all),
        automatic.len(),
        bytes(&automatic)
    )
}

/// Days since the last use, as exact as they are known.
fn last_use(seconds: Option<u64>) -> String {
    match seconds.map(|seconds| seconds / (24 * 60 * 60)) {
        None => "unknown".to_owned(),
        Some(0) => "today".to_owned(),
        Some(days) => format!("{} ago", counted(days, "day")),
    }
}

fn rows(images: &[Row]) -> String {
    // Only if there is information.
    let by_node = images.iter().any(|image| !image.nodes.is_empty());
    let headings = ["users", "last use", "memory", "huge", "of", "base", "node", "source", "path of the source"];
    let mut rows = table(&headings.into_iter().filter(|heading| by_node || *heading != "node").collect::<Vec<_>>());
    for image in images {
        let (huge, mappable) = image.coverage.map_or_else(
            || ("unknown".to_owned(), "-".to_owned()),
            |coverage| (format_bytes(coverage.huge), format_bytes(coverage.mappable)),
        );
        let state = match image.source_state {
            SourceState::Same => "same",
            SourceState::Changed => "changed",
            SourceState::Gone => "gone",
            SourceState::Unknown => "unknown",
        };
        let mut row = vec![
            image.users.len().to_string(),
            last_use(image.unused_seconds),
            format_bytes(image.memory),
            huge,
            mappable,
            format!("{:#x}", image.base_offset),
            state.to_owned(),
            printable(&image.source),
        ];
        if by_node {
            row.insert(6, nodes_of(image));
        }
        rows.add_row(row);
    }
    (0..=5).for_each(|column| align_right(&mut rows, column));
    trimmed(&rows)
}

/// The node of a copy for one node, or the nodes of a shared image; deviations are printed.
fn nodes_of(image: &Row) -> String {
    let lies_on: Vec<_> = image.nodes.keys().map(ToString::to_string).collect();
    let lies_on = lies_on.join(", ");
    match image.node {
        Some(node) if image.nodes.keys().any(|other| *other != node) => format!("for {node}, found on {lies_on}"),
        Some(node) => node.to_string(),
        None => format!("all, found on {lies_on}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(memory: u64, automatic: bool) -> Row {
        Row {
            image: "/store/x".to_owned(),
            source: "/usr/bin/x".to_owned(),
            source_state: SourceState::Same,
            build_id: None,
            base_offset: 0,
            node: None,
            nodes: BTreeMap::new(),
            size: memory,
            memory,
            for_everybody: true,
            automatic,
            unused_seconds: Some(0),
            users: Vec::new(),
            coverage: None,
        }
    }

    #[test]
    fn the_total_shows_what_came_by_itself_and_its_limit() {
        let images = [image(4 << 20, false), image(2 << 20, true)];
        let space = Space { free: Some(1 << 20), size: Some(16 << 20) };
        let expected = "2 images, 6.0 MiB; without a request: 1, 2.0 MiB of at most 8.0 MiB";
        assert_eq!(total(&images, &space), expected);
        assert!(rows(&images).contains("  today   4.0 MiB"), "{}", rows(&images));
        assert_eq!([Some(86_400), Some(200_000), None].map(last_use), ["1 day ago", "2 days ago", "unknown"]);
    }
}
