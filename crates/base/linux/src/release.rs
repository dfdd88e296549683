//! The release of the running kernel.

/// Returns the major and minor number of the running kernel, such as `(6, 18)`; `(0, 0)` where it cannot be read.
///
/// Used only for features that cannot be probed without touching a program's memory.
pub fn kernel_release() -> (u32, u32) {
    let Ok(names) = nix::sys::utsname::uname() else { return (0, 0) };
    parse(&names.release().to_string_lossy()).unwrap_or((0, 0))
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn releases_are_read() {
        assert_eq!(parse("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(parse("5.10.0-30-amd64"), Some((5, 10)));
        assert_eq!(parse("linux"), None);
    }
}
