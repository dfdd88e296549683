//! The address space before and after, coloured by page size. Blocks of HTML: they print, and a browser zooms and scrolls
//! them by itself.

use super::tables::{more, verb};
use crate::Detail;
use crate::view::Section;
use address_space::{PageSize, counted, format_bytes};
use maud::{Markup, html};
use measure::record::{AddressMap, Design, MapRange};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a mapping that count as much as resident ones, so that a mapping without resident memory is visible.
const LEAST_WEIGHT: u64 = 16 << 10;
/// Colours of huge pages in the style sheet.
const HUGE_COLOURS: usize = 3;

/// A state of the program: its name, the size of its base pages, and its mappings in the order of places.
struct State<'a> {
    name: &'a str,
    base_page: u64,
    cells: Vec<Cell<'a>>,
    left_out: usize,
}

/// A mapping, and the addresses by which it is placed.
struct Cell<'a> {
    range: &'a MapRange,
    start: u64,
    end: u64,
}

pub(super) fn map(section: &Section, number: usize, detail: Detail) -> Markup {
    let maps = section.mapped_states();
    if maps.is_empty() {
        return html! {
            p.none { "Not in the record: it was made by an earlier version, or runs were too short to be observed." }
        };
    }
    let states = states(&maps, section.design, detail.mappings);
    let layout = Layout::of(&states);
    let sizes = huge_sizes(&states);
    let left_out = states.iter().map(|state| state.left_out).max().unwrap_or(0);
    html! {
        figure {
            (legend(&sizes, states[0].base_page))
            div.zoom hidden {
                label for={ "z" (number) } { "Zoom" }
                input id={ "z" (number) } type="range" min="0" max="6" step="0.05" value="0";
                span.faint { "Scroll sideways to move; point at a block, or touch it, to read its details." }
            }
            div.map tabindex="0" role="group" aria-label="Address space, before and after; a table follows" {
                div.lanes {
                    div.labels aria-hidden="true" {
                        @for label in &layout.labels { span style=(style(label.place)) { em { (label.text) } } }
                    }
                    @for state in &states {
                        div.state { (state.name) }
                        div.lane { @for cell in &state.cells { (block(cell, &layout, &sizes, state.base_page)) } }
                    }
                }
            }
            output.told aria-live="polite" {}
            figcaption {
                "Each block is a mapping, in the order of addresses, with gaps left out; the wider the more is resident, by the \
                 square root. The filled height is what is resident: the kernel counts the pages of a mapping and does \
                 not report their places in it."
                @if !section.design.is_of_one_process() { " Each process has other addresses: mappings with the same name are below each other." }
                @if left_out > 0 { " " (counted(left_out as u64, "mapping")) " of little memory " (verb(left_out)) " left out." }
            }
        }
        (table(&maps, detail))
    }
}

fn legend(sizes: &[u64], base: u64) -> Markup {
    html! {
        ul.legend {
            li { span.key.base {} "base pages" @if let Some(size) = page(base) { " (" (size) ")" } }
            @for (at, size) in sizes.iter().enumerate() {
                li { span class={ "key h" (at.min(HUGE_COLOURS - 1)) } {} "huge pages" @if let Some(size) = page(*size) { " (" (size) ")" } }
            }
            li { span.key.absent {} "not resident" }
        }
    }
}

fn states<'a>(maps: &[(&'a str, &'a AddressMap)], design: Design, most: usize) -> Vec<State<'a>> {
    let mut slots = Slots::default();
    let state = |(name, map): &(&'a str, &'a AddressMap)| {
        let ranges = largest(map, most);
        let left_out = map.left_out.ranges.saturating_add(map.ranges.len() - ranges.len());
        let cells = if design.is_of_one_process() {
            ranges.into_iter().map(|range| Cell { range, start: range.start.0, end: range.end.0 }).collect()
        } else {
            slots.cells(ranges)
        };
        State { name, base_page: map.base_page, cells, left_out }
    };
    let mut states: Vec<State<'a>> = maps.iter().map(state).collect();
    if !design.is_of_one_process() {
        states.iter_mut().for_each(|state| slots.place(&mut state.cells));
    }
    states
}

/// Places for memory with different addresses in each process: neighbours of one name have a slot together, the same in
/// each process.
#[derive(Default)]
struct Slots {
    /// A name, and its number of earlier occurrences.
    order: Vec<(String, usize)>,
}

impl Slots {
    /// Bits of an offset within a slot.
    const OFFSET: u32 = 46;

    /// Cells whose addresses are the number of their slot's name and their offsets; [`Slots::place`] knows the slots when
    /// all processes are known.
    fn cells<'a>(&mut self, ranges: Vec<&'a MapRange>) -> Vec<Cell<'a>> {
        let (mut seen, mut position) = (BTreeMap::new(), 0);
        let mut cells = Vec::new();
        for neighbours in ranges.chunk_by(|a, b| name(a) == name(b)) {
            let name = name(neighbours[0]);
            let count: &mut usize = seen.entry(name).or_default();
            let key = (name.to_owned(), *count);
            *count += 1;
            match self.order.iter().position(|other| *other == key) {
                Some(at) => position = at + 1,
                None => {
                    self.order.insert(position.min(self.order.len()), key);
                    position += 1;
                }
            }
            let first = neighbours[0].start.0;
            let most = (1 << Self::OFFSET) - 1;
            let offset = |address: u64| address.saturating_sub(first).min(most);
            cells.extend(neighbours.iter().map(|&range| Cell {
                range,
                start: offset(range.start.0),
                end: offset(range.end.0),
            }));
        }
        cells
    }

    fn place(&self, cells: &mut [Cell<'_>]) {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for neighbours in cells.chunk_by_mut(|a, b| name(a.range) == name(b.range)) {
            let name = name(neighbours[0].range);
            let count = seen.entry(name).or_default();
            let slot =
                self.order.iter().position(|(other, number)| other == name && number == count).unwrap_or(0) as u64;
            *count += 1;
            for cell in neighbours {
                (cell.start, cell.end) = (cell.start | slot << Self::OFFSET, cell.end | slot << Self::OFFSET);
            }
        }
    }
}

fn page(bytes: u64) -> Option<String> {
    PageSize::new(bytes).ok().map(|size| size.to_string())
}

/// Sizes of huge pages in any state, in increasing order.
fn huge_sizes(states: &[State<'_>]) -> Vec<u64> {
    let cells = states.iter().flat_map(|state| &state.cells);
    let sizes: BTreeSet<u64> =
        cells.flat_map(|cell| &cell.range.huge).map(|huge| huge.page_size.unwrap_or(0)).collect();
    sizes.into_iter().take(8).collect()
}

/// A stretch of the drawing, in shares of its width.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    left: f64,
    width: f64,
}

fn style(place: Place) -> String {
    format!("left:{:.3}%;width:{:.3}%", place.left * 100.0, place.width * 100.0)
}

struct Label {
    text: String,
    place: Place,
}

/// The positions of addresses in the drawing. All states are constant between two adjacent boundaries.
struct Layout {
    /// Each boundary, and its position in the drawing; in the order of addresses.
    boundaries: Vec<(u64, f64)>,
    labels: Vec<Label>,
}

impl Layout {
    fn of(states: &[State<'_>]) -> Self {
        let drawn = || states.iter().flat_map(|state| &state.cells);
        let addresses: BTreeSet<u64> = drawn().flat_map(|cell| [cell.start, cell.end]).collect();
        let addresses: Vec<u64> = addresses.into_iter().collect();
        // Weight and name of the part between a boundary and the next.
        let mut between: Vec<(f64, &str)> = vec![(0.0, ""); addresses.len()];
        for Cell { range, start, end } in drawn() {
            let first = addresses.partition_point(|at| at < start);
            let resident = range.resident.min(range.mapped()).max(LEAST_WEIGHT) as f64 / range.mapped().max(1) as f64;
            for at in first..addresses.len().saturating_sub(1) {
                if addresses[at] >= *end {
                    break;
                }
                let weight = (addresses[at + 1] - addresses[at]) as f64 * resident;
                if weight > between[at].0 {
                    between[at] = (weight, name(range));
                }
            }
        }
        let groups = groups(&between);
        let total: f64 = groups.iter().map(|group| group.weight.sqrt()).sum::<f64>().max(1.0);
        let (mut boundaries, mut labels, mut left) = (Vec::new(), Vec::new(), 0.0);
        for Group { members, weight, name } in groups {
            let width = weight.sqrt() / total;
            if weight > 0.0 {
                labels.push(Label { text: name.to_owned(), place: Place { left, width } });
            }
            let mut within = 0.0;
            for at in members {
                boundaries.push((addresses[at], left + if weight > 0.0 { width * within / weight } else { 0.0 }));
                within += between[at].0;
            }
            left += width;
        }
        Self { boundaries, labels }
    }

    fn at(&self, address: u64) -> f64 {
        let index = self.boundaries.partition_point(|(boundary, _)| *boundary < address);
        self.boundaries.get(index).map_or(1.0, |(_, place)| *place)
    }

    fn place(&self, cell: &Cell<'_>) -> Place {
        let left = self.at(cell.start);
        // Behind the last of a group another group begins, with the same boundary or a later one.
        Place { left, width: (self.at(cell.end) - left).max(0.0) }
    }
}

/// Neighbours of one name.
struct Group<'n> {
    members: std::ops::Range<usize>,
    /// Sum of the weights.
    weight: f64,
    name: &'n str,
}

/// Joins neighbours of one name.
fn groups<'n>(between: &[(f64, &'n str)]) -> Vec<Group<'n>> {
    let mut groups: Vec<Group<'n>> = Vec::new();
    for (at, &(weight, name)) in between.iter().enumerate() {
        match groups.last_mut() {
            // Gaps weigh nothing, and belong to the range before them.
            Some(last) if last.name == name || weight == 0.0 => {
                last.members.end = at + 1;
                last.weight += weight;
            }
            _ => groups.push(Group { members: at..at + 1, weight, name }),
        }
    }
    groups
}

/// The mappings of the most resident memory, in the order of addresses.
fn largest(map: &AddressMap, most: usize) -> Vec<&MapRange> {
    let mut ranges: Vec<&MapRange> = map.ranges.iter().filter(|range| range.mapped() > 0).collect();
    if ranges.len() > most {
        ranges.sort_by_key(|range| std::cmp::Reverse((range.resident, range.mapped())));
        ranges.truncate(most);
    }
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// The object, or the kind of memory.
fn name(range: &MapRange) -> &str {
    if range.object.is_empty() { &range.kind } else { &range.object }
}

/// A mapping: its bytes on pages of each size.
fn block(cell: &Cell<'_>, layout: &Layout, sizes: &[u64], base: u64) -> Markup {
    let range = cell.range;
    let share = |bytes: u64| (bytes as f64 / range.mapped().max(1) as f64 * 100.0).min(100.0);
    let all_huge = range.huge.iter().fold(0u64, |sum, huge| sum.saturating_add(huge.bytes));
    let main = range.huge.iter().max_by_key(|huge| huge.bytes).map(|huge| huge.page_size.unwrap_or(0));
    let class = main.and_then(|size| sizes.iter().position(|other| *other == size)).unwrap_or(0).min(HUGE_COLOURS - 1);
    // Resident bytes are visible even if they are few.
    let (huge, resident) = (share(all_huge), share(range.resident.max(all_huge)));
    let resident = if resident > 0.0 { resident.max(6.0) } else { 0.0 };
    html! {
        b class={ "h" (class) } title=(told(range, base))
            style={ (style(layout.place(cell))) ";--h:" (format!("{huge:.0}")) "%;--r:" (format!("{resident:.0}")) "%" } {}
    }
}

/// A block in words.
fn told(range: &MapRange, base: u64) -> String {
    let all_huge = range.huge.iter().fold(0u64, |sum, huge| sum.saturating_add(huge.bytes));
    let mut parts: Vec<String> = Vec::new();
    for huge in range.huge.iter().take(4) {
        let size = huge.page_size.and_then(page).unwrap_or_else(|| "huge".to_owned());
        parts.push(format!("{} on {size} pages ({})", format_bytes(huge.bytes), huge.kind));
    }
    let small = range.resident.saturating_sub(all_huge);
    if small > 0 {
        let size = page(base).unwrap_or_else(|| "base".to_owned());
        parts.push(format!("{} on {size} pages", format_bytes(small)));
    }
    if parts.is_empty() {
        parts.push("nothing resident".to_owned());
    }
    let object = if range.object.is_empty() { String::new() } else { format!("{} ", range.object) };
    format!(
        "{object}{}, {}, {} at {:x}: {}",
        range.kind,
        format_bytes(range.mapped()),
        range.protection,
        range.start.0,
        parts.join(", ")
    )
}

/// Bytes of one state: resident and on huge pages.
type Bytes = (u64, u64);

/// The map in numbers, by object and kind, the largest first.
fn table(states: &[(&str, &AddressMap)], detail: Detail) -> Markup {
    let mut sums: BTreeMap<(&str, &str), Vec<Bytes>> = BTreeMap::new();
    for (index, (_, map)) in states.iter().enumerate() {
        for range in &map.ranges {
            let sum = sums.entry((range.object.as_str(), range.kind.as_str()));
            let (resident, huge) = &mut sum.or_insert_with(|| vec![(0, 0); states.len()])[index];
            *resident = resident.saturating_add(range.resident);
            *huge = range.huge.iter().fold(*huge, |sum, huge| sum.saturating_add(huge.bytes));
        }
    }
    let mut rows: Vec<_> = sums.into_iter().filter(|(_, states)| states.iter().any(|state| state.0 > 0)).collect();
    rows.sort_by_key(|(_, states)| std::cmp::Reverse(states.iter().map(|state| state.0).max()));
    let all = rows.len();
    rows.truncate(detail.rows);
    html! {
        details {
            summary { "The map in numbers" }
            div.scroll { table {
                thead {
                    tr { th rowspan="2" scope="col" { "Object" } th rowspan="2" scope="col" { "What" }
                        @for (name, _) in states { th.group colspan="2" scope="colgroup" { (name) } } }
                    tr { @for _ in states { th.number scope="col" { "Resident" } th.number scope="col" { "Huge" } } }
                }
                tbody { @for ((object, kind), bytes) in &rows { tr {
                    th scope="row" { @if object.is_empty() { "–" } @else { (object) } } td { (kind) }
                    @for (resident, huge) in bytes {
                        td.number { (format_bytes(*resident)) }
                        td.number { @if *huge > 0 { (format_bytes(*huge)) } @else { "–" } }
                    }
                } } }
            } }
            (more(all, rows.len(), "row"))
        }
    }
}
