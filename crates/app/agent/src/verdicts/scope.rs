//! The machine's part of a key, and the options of a lift as its last part.

use super::record::Key;
use measure::machine_check::look_at_machine;
use options::Choice;
use options::Pages;
use std::time::Duration;

/// Facts about the machine on which a verdict depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// CPU model.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// Settings of transparent huge pages.
    pub thp: String,
}

impl Scope {
    /// Reads the facts of this machine.
    pub fn read() -> Self {
        let machine = look_at_machine(Duration::ZERO);
        Self {
            cpu: machine.cpu_model.unwrap_or_default(),
            kernel: machine.kernel,
            thp: machine.thp_enabled.unwrap_or_default(),
        }
    }

    /// The key of a build, as `Program::build_of_user` names it, with the kinds of memory that are lifted, the source of pages, and
    /// the most bytes that a lift may make resident.
    pub fn key(&self, build: &str, kinds: &[&str], pages: Pages, most: Option<u64>) -> Key {
        let most = most.map_or(String::new(), |bytes| format!(" at most {bytes}"));
        Key {
            build: build.to_owned(),
            cpu: self.cpu.clone(),
            kernel: self.kernel.clone(),
            thp: self.thp.clone(),
            options: format!("{} {}{most}", kinds.join(","), pages.word()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_all_that_a_verdict_depends_on() {
        let scope = Scope { cpu: "c".to_owned(), kernel: "6.18".to_owned(), thp: "madvise".to_owned() };
        let key = scope.key("b", &["text", "rodata"], Pages::Auto, None);
        assert_eq!((key.options.as_str(), key.build.as_str()), ("text,rodata auto", "b"));
        assert_eq!(scope.key("b", &["text"], Pages::Thp, Some(7)).options, "text thp at most 7");
        assert!(!Scope::read().kernel.is_empty());
    }
}
