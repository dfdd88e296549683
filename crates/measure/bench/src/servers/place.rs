//! The differences between servers that run side by side, and the words that name them. Pure.

use std::path::{Path, PathBuf};

/// The port and folder of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlace {
    /// A port of this machine that was free.
    pub port: u16,
    /// A separate folder, kept from start to start.
    pub folder: PathBuf,
}

impl ServerPlace {
    /// The text with `{port}` and `{dir}` replaced. Other braces are left alone.
    pub fn fill_in(&self, text: &str) -> String {
        text.replace("{port}", &self.port.to_string()).replace("{dir}", &self.folder.to_string_lossy())
    }

    /// The words of a command, each filled in by itself: a folder with a blank stays one word.
    pub fn fill_in_words(&self, words: &[String]) -> Vec<String> {
        words.iter().map(|word| self.fill_in(word)).collect()
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Splits a command into words as a shell does, without the shell's substitutions.
///
/// # Errors
/// A quotation mark is missing, or there is no word.
pub fn words_of(command: &str) -> Result<Vec<String>, String> {
    match shlex::split(command) {
        Some(words) if !words.is_empty() => Ok(words),
        Some(_) => Err("the command is empty; needed: a program and its arguments".to_owned()),
        None => Err(format!("{command}: a quotation mark is not closed; fix: write it twice or after a backslash")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_known_words_are_replaced() {
        let place = ServerPlace { port: 4321, folder: "/tmp/a b".into() };
        assert_eq!(place.fill_in("awk '{print}' {port} {dir}/x {seconds}"), "awk '{print}' 4321 /tmp/a b/x {seconds}");
        let words = words_of("server --port {port} --save '' {dir}").unwrap();
        assert_eq!(place.fill_in_words(&words), ["server", "--port", "4321", "--save", "", "/tmp/a b"]);
        assert!(words_of("a 'b").unwrap_err().contains("fix: "));
        assert!(words_of(" ").unwrap_err().contains("needed: "));
    }
}
