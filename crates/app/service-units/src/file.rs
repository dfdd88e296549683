//! Unit files (systemd.syntax(7)).

use crate::words::BLANKS;

/// An assignment in a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The section without brackets.
    pub section: String,
    /// The name before `=`.
    pub name: String,
    /// The text behind it, with continued lines joined by a blank.
    pub value: String,
}

/// Reads the assignments of a unit file in their order. Lines that systemd ignores are omitted.
pub fn assignments(text: &str) -> Vec<Assignment> {
    let (mut found, mut section, mut pending) = (Vec::new(), String::new(), String::new());
    for line in text.trim_start_matches('\u{feff}').lines() {
        let line = line.trim_start_matches(BLANKS);
        // Comments between continued lines are left out.
        if line.starts_with(['#', ';']) {
            continue;
        }
        pending += line;
        let trailing = pending.chars().rev().take_while(|c| *c == '\\').count();
        if trailing % 2 == 1 {
            pending.pop();
            pending.push(' ');
            continue;
        }
        read(&std::mem::take(&mut pending), &mut section, &mut found);
    }
    read(&pending, &mut section, &mut found);
    found
}

fn read(line: &str, section: &mut String, found: &mut Vec<Assignment>) {
    let line = line.trim_matches(BLANKS);
    if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
        name.clone_into(section);
    } else if let Some((name, value)) = line.split_once('=') {
        let [name, value] = [name, value].map(|text| text.trim_matches(BLANKS).to_owned());
        found.push(Assignment { section: section.clone(), name, value });
    }
}

/// The values of `ExecStart=` that count after these files, in the order in which systemd reads them: an empty one takes
/// back all before it.
pub fn exec_start<'a>(files: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut lines = Vec::new();
    for value in service_values(files, "ExecStart") {
        if value.is_empty() { lines.clear() } else { lines.push(value) }
    }
    lines
}

/// All values that these files give a setting of `[Service]`, in their order, empty ones too.
pub fn service_values<'a>(files: impl IntoIterator<Item = &'a str>, name: &str) -> Vec<String> {
    let all = files.into_iter().flat_map(assignments);
    all.filter(|set| set.section == "Service" && set.name == name).map(|set| set.value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_continued_and_comments_left_out() {
        let text = "\u{feff}# x\n[Service]\n  ExecStart = /bin/a \\\n# between\n; too\n   'b  c' \\\\\n[Install]\nExecStart=no\n";
        assert_eq!(exec_start([text]), [r"/bin/a  'b  c' \\"]);
        assert_eq!(exec_start(["[Service]\nExecStart=/bin/a \\"]), ["/bin/a"]);
    }

    #[test]
    fn an_empty_value_takes_back_all_before() {
        let unit = "[Service]\nExecStart=/bin/a\nExecStart=/bin/b\n";
        assert_eq!(exec_start([unit, "[Service]\nExecStart=/bin/c\n"]), ["/bin/a", "/bin/b", "/bin/c"]);
        assert_eq!(exec_start([unit, "[Service]\nExecStart= \nExecStart=/bin/c=d\n"]), ["/bin/c=d"]);
    }
}
