//! The parts of docs/RESULTS.md that programs write, each between two marks.

use anyhow::{Result, bail};

/// The marks of a part: its first line and its last.
pub(crate) struct Marks {
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
}

impl Marks {
    /// The page with the part between the marks replaced, or added at its end. The rest stays unchanged.
    pub(crate) fn replaced(&self, page: &str, part: &str) -> Result<String> {
        let Self { begin, end } = self;
        match (page.find(begin), page.find(end)) {
            (Some(first), Some(last)) if first < last => {
                Ok(format!("{}{begin}{part}{}", &page[..first], &page[last..]))
            }
            (None, None) => Ok(format!("{}\n\n{begin}{part}{end}", page.trim_end_matches('\n'))),
            _ => bail!("the page has one of the two marks, or both in the wrong order:\n{begin}{end}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks { begin: "<!-- begin -->\n", end: "<!-- end -->\n" };

    #[test]
    fn the_page_keeps_what_is_outside_of_the_marks() {
        let Marks { begin, end } = MARKS;
        let first = MARKS.replaced("# Results\n\nabove\n", "one\n").unwrap();
        assert_eq!(first, format!("# Results\n\nabove\n\n{begin}one\n{end}"));
        let second = MARKS.replaced(&(first + "below\n"), "two\n").unwrap();
        assert_eq!(second, format!("# Results\n\nabove\n\n{begin}two\n{end}below\n"));
        assert!(MARKS.replaced(begin, "x").is_err() && MARKS.replaced(&format!("{end}{begin}"), "x").is_err());
    }
}
