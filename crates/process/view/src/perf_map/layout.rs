//! Lays symbols out over ranges so that every byte has exactly one name.

use crate::printable;
use crate::symbols::Symbol;
use address_space::{Address, AddressRange, LoadedObject, RangeSet};
use linux::bounded::MemoryBound;
use std::cmp::Reverse;
use std::fmt::Write;

/// Gaps shorter than this behind a function are padding up to the next one's alignment and take its name.
const LONGEST_PADDING: u64 = 64;

/// One object, the symbols of its code, and the ranges to be named.
#[derive(Clone, Copy, Debug)]
pub struct NamedObject<'a> {
    /// The object at its address in the process.
    pub object: &'a LoadedObject,
    /// Its symbols, in any order.
    pub symbols: &'a [Symbol],
    /// The addresses in the process to be named.
    pub ranges: &'a RangeSet,
}

/// The text of a perf map (the JIT interface of perf: a line `START SIZE NAME` for each symbol, both numbers
/// hexadecimal), lowest address first. Bytes without a symbol are named `OBJECT+0xOFFSET`, so that every address in the
/// ranges is resolved. `None` if the text would be longer than `bound`: a name is repeated for each piece of its code
/// between which other symbols are.
pub fn render(objects: &[NamedObject<'_>], bound: MemoryBound) -> Option<String> {
    let mut lines = Vec::new();
    for named in objects {
        let spans = spans_of(named.symbols, named.object.bias);
        named.ranges.iter().for_each(|range| lines.extend(fill(range, &spans, named.object)));
    }
    lines.sort_by_key(|line: &Line<'_>| line.range);
    let mut text = String::new();
    for line in &lines {
        let (start, length) = (line.range.start().0, line.range.len());
        let offset = start.wrapping_sub(line.object.bias);
        // Writing to a String cannot fail.
        let _ = match line.name {
            Some(name) => writeln!(text, "{start:x} {length:x} {name}"),
            None => writeln!(text, "{start:x} {length:x} {}+{offset:#x}", printable(line.object.name())),
        };
        if text.len() as u64 > bound.bytes() {
            return None;
        }
    }
    Some(text)
}

/// Some bytes and the symbol they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span<'a> {
    range: AddressRange,
    name: &'a str,
}

struct Line<'a> {
    range: AddressRange,
    name: Option<&'a str>,
    object: &'a LoadedObject,
}

/// The names of an object at `bias`, lowest address first, without overlap.
pub(crate) fn named_ranges(symbols: &[Symbol], bias: u64) -> Vec<(AddressRange, String)> {
    spans_of(symbols, bias).into_iter().map(|span| (span.range, span.name.to_owned())).collect()
}

/// Spans without overlap, lowest first: where symbols nest, the inner one has its bytes and the outer one the rest.
fn spans_of(symbols: &[Symbol], bias: u64) -> Vec<Span<'_>> {
    let mut spans = Vec::new();
    let mut open: Vec<Span<'_>> = Vec::new();
    let mut cursor = Address(0);
    for symbol in one_per_address(symbols, bias) {
        close_until(symbol.range.start(), &mut open, &mut cursor, &mut spans);
        if let Some(outer) = open.last() {
            push(&mut spans, outer.name, cursor, symbol.range.start());
        }
        cursor = symbol.range.start();
        open.push(symbol);
    }
    close_until(Address(u64::MAX), &mut open, &mut cursor, &mut spans);
    spans
}

fn close_until<'a>(limit: Address, open: &mut Vec<Span<'a>>, cursor: &mut Address, spans: &mut Vec<Span<'a>>) {
    while let Some(top) = open.pop_if(|top| top.range.end() <= limit) {
        push(spans, top.name, *cursor, top.range.end());
        *cursor = (*cursor).max(top.range.end());
    }
}

fn push<'a>(spans: &mut Vec<Span<'a>>, name: &'a str, start: Address, end: Address) {
    if start < end {
        spans.push(Span { range: AddressRange::new(start, end), name });
    }
}

/// The best symbol of each address, lowest first, with computed sizes for symbols without one.
fn one_per_address(symbols: &[Symbol], bias: u64) -> Vec<Span<'_>> {
    let mut sorted: Vec<&Symbol> = symbols.iter().collect();
    sorted.sort_by_key(|symbol| (symbol.address, Reverse(preference(symbol)), &symbol.name));
    let mut named: Vec<(u64, u64, &Symbol)> = Vec::with_capacity(sorted.len());
    let mut covered = 0;
    for symbol in sorted {
        let start = symbol.address.0.wrapping_add(bias);
        match named.last_mut() {
            Some(last) if last.0 == start => last.1 = last.1.max(symbol.size),
            // A label without a size inside of a function is a part of this function.
            _ if symbol.size == 0 && start < covered => {}
            _ => named.push((start, symbol.size, symbol)),
        }
        covered = covered.max(start.saturating_add(symbol.size));
    }
    let starts: Vec<u64> = named.iter().map(|n| n.0).chain([u64::MAX]).collect();
    let mut spans = Vec::with_capacity(named.len());
    for (index, (start, size, symbol)) in named.into_iter().enumerate() {
        let in_section = symbol.limit.0.saturating_sub(symbol.address.0);
        let reach = starts[index + 1].saturating_sub(start).min(in_section);
        let range = AddressRange::sized(Address(start), if size == 0 { reach } else { size });
        spans.push(Span { range, name: symbol.name.as_str() });
    }
    spans
}

/// Like perf: functions before labels, global before local names, few underscores in front, longer before shorter.
fn preference(symbol: &Symbol) -> (u8, bool, Reverse<usize>, usize) {
    let underscores = symbol.name.len() - symbol.name.trim_start_matches('_').len();
    (symbol.rank, symbol.size > 0, Reverse(underscores), symbol.name.len())
}

/// Lines that cover all of `range`.
fn fill<'a>(range: AddressRange, spans: &[Span<'a>], object: &'a LoadedObject) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut cursor = range.start();
    let first = spans.partition_point(|span| span.range.end() <= range.start());
    for span in spans[first..].iter().take_while(|span| span.range.start() < range.end()) {
        let named = span.range.intersect(range);
        fill_gap(AddressRange::new(cursor, named.start()), &mut lines, object);
        lines.push(Line { range: named, name: Some(span.name), object });
        cursor = named.end();
    }
    fill_gap(AddressRange::new(cursor, range.end()), &mut lines, object);
    lines
}

fn fill_gap<'a>(gap: AddressRange, lines: &mut Vec<Line<'a>>, object: &'a LoadedObject) {
    match lines.last_mut() {
        _ if gap.is_empty() => {}
        Some(last) if gap.len() < LONGEST_PADDING => last.range = AddressRange::new(last.range.start(), gap.end()),
        _ => lines.push(Line { range: gap, name: None, object }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(address: u64, size: u64, name: &str, rank: u8) -> Symbol {
        Symbol { address: Address(address), size, limit: Address(100), name: name.to_owned(), rank }
    }

    fn spans(symbols: &[Symbol]) -> Vec<(u64, u64, &str)> {
        spans_of(symbols, 0).iter().map(|s| (s.range.start().0, s.range.end().0, s.name)).collect()
    }

    #[test]
    fn an_inner_symbol_cuts_the_outer_one_in_two() {
        let symbols = [symbol(10, 30, "outer", 2), symbol(20, 5, "inner", 2), symbol(22, 0, "label", 0)];
        assert_eq!(spans(&symbols), [(10, 20, "outer"), (20, 25, "inner"), (25, 40, "outer")]);
    }

    #[test]
    fn of_several_names_the_best_is_taken_with_any_known_size() {
        let symbols = [symbol(10, 8, "__local", 2), symbol(10, 0, "global", 3), symbol(10, 8, "label", 0)];
        assert_eq!(spans(&symbols), [(10, 18, "global")]);
    }

    #[test]
    fn a_symbol_without_size_reaches_to_the_next() {
        let symbols = [symbol(10, 0, "first", 0), symbol(50, 4, "second", 2)];
        assert_eq!(spans(&symbols), [(10, 50, "first"), (50, 54, "second")]);
    }

    #[test]
    fn a_symbol_without_size_ends_with_its_section() {
        assert_eq!(
            spans(&[symbol(10, 0, "last", 0), symbol(200, 4, "far", 2)]),
            [(10, 100, "last"), (200, 204, "far")]
        );
    }

    #[test]
    fn symbols_that_overlap_in_part_never_give_a_byte_two_names() {
        let symbols = [symbol(10, 10, "a", 2), symbol(15, 10, "b", 2), symbol(18, 4, "c", 2)];
        assert_eq!(spans(&symbols), [(10, 15, "a"), (15, 18, "b"), (18, 22, "c"), (22, 25, "b")]);
    }
}
