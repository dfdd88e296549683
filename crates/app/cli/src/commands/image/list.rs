//! `pagelift image list`.

use crate::output::Output;
use crate::text::table::{align_right, table};
use crate::text::unanswered;
use address_space::{PageSize, format_bytes};
use image_store::{FileSystem, Image, ImageCoverage, SourceState, Space, Store, Users};
use linux::nodes::has_several_nodes;
use process_view::{Unanswered, printable};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Listing {
    format: &'static str,
    version: u32,
    store: String,
    file_system: FileSystem,
    page_size: PageSize,
    space: Space,
    images: Vec<Row>,
    /// Things in the store that are not images.
    damaged: Vec<Damaged>,
    /// Images that this user may not read.
    not_readable: u64,
    /// Processes that this user may not look at, so that they are not among the users.
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
    users: Vec<i32>,
    /// None where the kernel cannot tell.
    coverage: Option<ImageCoverage>,
}

#[derive(Serialize)]
struct Damaged {
    name: String,
    problem: &'static str,
}

/// Prints what the store holds.
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
    let damaged = found.damaged.into_iter().map(|(name, problem)| Damaged { name: printable(&name), problem });
    Ok(Listing {
        format: "pagelift-images",
        version: 1,
        store: store.path().display().to_string(),
        file_system: store.file_system(),
        page_size: store.page_size(),
        space: store.space()?,
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
        users: users.of(image),
        coverage: image.coverage().ok(),
    })
}

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
        text += &format!("\n{}\n", rows(images));
    }
    for Damaged { name, problem } in &listing.damaged {
        text += &format!("note: {name}: {problem}; `pagelift image gc` removes it\n");
    }
    if listing.not_readable > 0 {
        text += &format!("note: {} images are for root only\n", listing.not_readable);
    }
    if listing.processes_not_permitted > 0 {
        let count = listing.processes_not_permitted;
        let fix = if nix::unistd::geteuid().is_root() { "" } else { "; run it as root to count them" };
        text += &format!("note: {count} processes may not be looked at{fix}\n");
    }
    text + &unanswered::notes(&listing.unanswered)
}

fn rows(images: &[Row]) -> String {
    // Only where there is anything to tell.
    let by_node = images.iter().any(|image| !image.nodes.is_empty());
    let headings = ["users", "memory", "huge", "of", "base", "node", "source", "path of the source"];
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
            format_bytes(image.memory),
            huge,
            mappable,
            format!("{:#x}", image.base_offset),
            state.to_owned(),
            printable(&image.source),
        ];
        if by_node {
            row.insert(5, nodes_of(image));
        }
        rows.add_row(row);
    }
    (0..=4).for_each(|column| align_right(&mut rows, column));
    rows.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>().trim_end().to_owned()
}

/// The node of a copy for one node, or those on which an image that all share lies; what is not as it should be is said.
fn nodes_of(image: &Row) -> String {
    let lies_on: Vec<_> = image.nodes.keys().map(ToString::to_string).collect();
    let lies_on = lies_on.join(", ");
    match image.node {
        Some(node) if image.nodes.keys().any(|other| *other != node) => format!("for {node}, lies on {lies_on}"),
        Some(node) => node.to_string(),
        None => format!("all, lies on {lies_on}"),
    }
}
