//! Names of programs and objects, and patterns for them.

use core::str::Chars;

/// Shell-like matching of a whole text by a pattern with `*` and `?`. Allocates nothing.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // After the last `*`: the rest of the pattern, and the rest of the text after the present end of the `*`.
    let mut star: Option<(Chars, Chars)> = None;
    loop {
        let (before, mut behind) = (text.clone(), pattern.clone());
        match (behind.next(), text.next()) {
            (Some('*'), _) => {
                star = Some((behind.clone(), before.clone()));
                (pattern, text) = (behind, before);
            }
            (None, None) => return true,
            (Some(c), Some(found)) if c == '?' || c == found => pattern = behind,
            (_, None) => return false,
            (_, Some(_)) => {
                let Some((after, taken)) = &mut star else { return false };
                taken.next();
                (pattern, text) = (after.clone(), taken.clone());
            }
        }
    }
}

/// True if one of the patterns matches one of a program's names; `*` and `?` are as in a shell.
pub fn is_named<'a>(only: impl IntoIterator<Item = &'a str>, names: &[&str]) -> bool {
    only.into_iter().any(|pattern| names.iter().any(|name| matches(pattern, name)))
}

/// A program's names: its file's name and path, the name it was called by if that is the beginning of the file's
/// (`python3` of `python3.11`), and the name and path it was started by if that leads to the same file, which the
/// caller checks (`redis-server`, a link to `redis-check-rdb`). Empty names count as none.
pub fn program_names<'a>(path: &'a str, called: &'a str, started: Option<&'a str>) -> [&'a str; 5] {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let short = |path: &'a str| path.rsplit('/').next().unwrap_or(path);
    let file = short(path);
    let called = Some(short(called)).filter(|name| file.starts_with(name)).unwrap_or_default();
    let started = started.unwrap_or_default();
    [file, path, called, short(started), started]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text, expected) in [
            ("libjvm*", "libjvm.so", true),
            ("*.so", "libjvm.so", true),
            ("lib?.so", "libz.so", true),
            ("lib?.so", "libzz.so", false),
            ("*z*s*", "libz.so.1", true),
            ("lib?.so", "bin1.so", false),
            ("libz.so", "libm.so", false),
            ("", "x", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
    #[test]
    fn a_program_has_the_names_of_its_file_and_of_its_links() {
        let names = program_names("/usr/bin/python3.11 (deleted)", "python3", None);
        assert_eq!(names, ["python3.11", "/usr/bin/python3.11", "python3", "", ""]);
        let names_of_link = program_names("/bin/redis-check-rdb", "-sh", Some("/bin/redis-server"));
        assert_eq!(names_of_link, ["redis-check-rdb", "/bin/redis-check-rdb", "", "redis-server", "/bin/redis-server"]);
        assert!(is_named(["perl", "python3.1?"], &names) && !is_named(["perl"], &names));
    }
}
