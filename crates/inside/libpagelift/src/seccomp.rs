//! The seccomp filters of the calling thread (seccomp(2)), read by calls that every `dlopen` makes and without memory of the
//! library's: a filter may kill the program for any other call.

use crate::files::File;

/// Filters of the calling thread, or `None` if the kernel does not report them: it counts them since Linux 5.9, and
/// only in `/proc`. Strict mode counts as more filters than there can be.
pub fn filters() -> Option<u32> {
    let status = File::open(c"/proc/thread-self/status").ok()?;
    let (mut lines, mut piece) = (Lines::default(), [0; 512]);
    loop {
        match linux_raw::read(status.descriptor(), &mut piece).ok()? {
            0 => return lines.filters(),
            length => piece.iter().take(length).for_each(|byte| lines.take(*byte)),
        }
    }
}

/// True if a thread that has `now` filters may be refused a call that one with `then` was allowed. Unknown numbers may
/// differ.
pub fn are_more(now: Option<u32>, then: Option<u32>) -> bool {
    now.zip(then).is_none_or(|(now, then)| now > then)
}

/// The two necessary lines of `/proc/PID/status`, read byte by byte: another line, the groups, has any length.
#[derive(Default)]
struct Lines {
    line: Line,
    mode: Option<u32>,
    count: Option<u32>,
}

/// The start of a line.
#[derive(Default)]
struct Line {
    bytes: [u8; 32],
    length: usize,
}

/// `SECCOMP_MODE_STRICT`.
const STRICT: u32 = 1;

impl Lines {
    fn take(&mut self, byte: u8) {
        if byte != b'\n' {
            return self.line.push(byte);
        }
        let line = core::mem::take(&mut self.line);
        self.mode = line.number_behind(b"Seccomp:\t").or(self.mode);
        self.count = line.number_behind(b"Seccomp_filters:\t").or(self.count);
    }

    fn filters(&self) -> Option<u32> {
        match self.mode? {
            0 => Some(0),
            STRICT => Some(u32::MAX),
            _ => self.count,
        }
    }
}

impl Line {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    fn number_behind(&self, name: &[u8]) -> Option<u32> {
        let digits = self.bytes.get(..self.length)?.strip_prefix(name)?;
        core::str::from_utf8(digits).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters_in(status: &str) -> Option<u32> {
        let mut lines = Lines::default();
        status.bytes().for_each(|byte| lines.take(byte));
        lines.filters()
    }

    #[test]
    fn the_lines_of_the_status_tell() {
        let groups = format!("Name:\tSeccomp:\t2\nGroups:\t{}\n", "1000 ".repeat(9000));
        let of = |lines: &str| filters_in(&(groups.clone() + lines + "Speculation_Store_Bypass:\tvulnerable\n"));
        assert_eq!(of("NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"), Some(0));
        assert_eq!(of("Seccomp:\t2\nSeccomp_filters:\t13\n"), Some(13));
        assert_eq!(of("Seccomp:\t1\nSeccomp_filters:\t0\n"), Some(u32::MAX));
        assert_eq!([of("Seccomp:\t0\n"), of("Seccomp:\t2\n"), of("")], [Some(0), None, None]);
    }

    #[test]
    fn what_is_not_known_may_be_more() {
        assert!(!are_more(Some(0), Some(0)) && !are_more(Some(1), Some(2)) && are_more(Some(1), Some(0)));
        assert!(are_more(None, Some(0)) && are_more(Some(0), None) && are_more(None, None));
    }

    #[test]
    fn this_thread_has_as_many_as_its_status_says() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(filters(), filters_in(&status));
    }
}
