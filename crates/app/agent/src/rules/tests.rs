//! Tests of whole configurations.

use super::*;
use options::{Kind, Kinds, Pages};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn read(text: &str) -> Result<Configuration, Vec<ConfigError>> {
    Configuration::read(&[ConfigFile { name: "50.toml".to_owned(), text: text.to_owned() }])
}

/// The only error, as it is shown.
fn error(text: &str) -> String {
    let errors = read(text).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].to_string()
}

const EXAMPLE: &str = r#"
[agent]
mode = "observe"
cpu = "0.5%"
max_pause = "50ms"
scan = "1s"
quiet = ["Mon-Fri 08:00-18:00"]

[[rule]]
name = "databases"
match = { exe = ["/usr/sbin/mariadbd", "*/bin/postgres"], min_text = "8M" }
lift = ["text", "rodata"]
pages = "auto"
keep = "if it pays"
rollout = "1%"
holdout = "5%"

[[rule]]
name = "pods that ask"
match = { env = "PAGELIFT_AGENT", cgroup = "kubepods*" }
allow = { lift = ["text", "rodata"], pages = ["file", "image", "thp"], max_memory = "128M" }
"#;

#[test]
fn the_example_is_understood() {
    let configuration = read(EXAMPLE).unwrap();
    let Configuration { settings, rules } = &configuration;
    assert_eq!((settings.mode, settings.scan), (Mode::Observe, Duration::from_secs(1)));
    assert_eq!(settings.settle, Duration::from_secs(30));
    assert_eq!(rules[0].conditions.exe.len(), 2);
    assert_eq!(rules[0].conditions.min_text, Some(8 << 20));
    assert_eq!((rules[0].keep, rules[0].rollout), (Keep::IfItPays, Share::percent(1.0)));
    assert_eq!(rules[0].place, "50.toml:9");
    let allow = rules[1].allow.as_ref().unwrap();
    assert_eq!(allow.pages, [Pages::File, Pages::Image, Pages::Thp]);
    assert_eq!((rules[1].kinds, allow.max_memory), (Kinds::of(&[Kind::Text, Kind::Rodata]), Some(128 << 20)));
    assert_eq!(rules[1].conditions.env.as_ref().unwrap().name, "PAGELIFT_AGENT");
}

#[test]
fn no_file_and_an_empty_one_have_no_rules() {
    assert_eq!(Configuration::read(&[]).unwrap(), Configuration::default());
    assert_eq!(read("").unwrap(), Configuration::default());
}

#[test]
fn an_error_shows_its_place() {
    let text = "[agent]\nmode = \"observe\"\nspeed = \"fast\"\n";
    let shown = error(text);
    assert!(shown.starts_with("50.toml:3:1: unknown field `speed`, expected one of `mode`"), "{shown}");
    assert!(shown.ends_with("\n 3 | speed = \"fast\"\n   | ^"), "{shown}");
}

#[test]
fn each_mistake_has_its_place_and_its_message() {
    let rule = |rest: &str| format!("[[rule]]\nname = \"a\"\nmatch = {{ exe = \"*/a\" }}\n{rest}\n");
    let mut wrong = Vec::new();
    for (text, place, message) in [
        ("[agent]\nscan = \"10\"\n".to_owned(), "2:8", "needed a time from 0s to 7d"),
        ("[agent]\nscan = \"1ms\"\n".to_owned(), "2:8", "needed: at least 100 ms"),
        ("[agent]\ncpu = \"0%\"\n".to_owned(), "2:7", "nothing would ever be lifted"),
        ("[agent]\nmode = \"acts\"\n".to_owned(), "2:8", "unknown variant `acts`, expected `observe` or `act`"),
        ("[agent]\nquiet = [\"always\"]\n".to_owned(), "2:9", "needed: hours such as"),
        ("[[rule]]\nname = \"a\"\n".to_owned(), "1:1", "missing field `match`"),
        ("[[rule]]\nname = \"a\"\nmatch = {}\n".to_owned(), "3:9", "exe = \"*\""),
        ("[[rule]]\nname = \"\"\nmatch = { exe = \"a\" }\n".to_owned(), "2:8", "a rule's name"),
        ("[[rule]]\nname = \"a\\u001b\"\nmatch = { exe = \"a\" }\n".to_owned(), "2:8", "a rule's name"),
        ("[[rule]]\nname = \"a\"\nmatch = { exe = [] }\n".to_owned(), "3:17", "an empty list"),
        ("[[rule]]\nname = \"a\"\nmatch = { exe = \"\" }\n".to_owned(), "3:17", "an empty pattern"),
        (
            "[[rule]]\nname = \"a\"\nmatch = { exe = [\"*\", \"mariadbd\"] }\n".to_owned(),
            "3:9",
            "exe = \"mariadbd\" matches no path; needed: \"*/mariadbd\", or name = \"mariadbd\"",
        ),
        ("[[rule]]\nname = \"a\"\nmatch = { unit = \"mariadb\" }\n".to_owned(), "3:9", "such as \"mariadb.service\""),
        ("[[rule]]\nname = \"a\"\nmatch = { cgroup = \"/kubepods*\" }\n".to_owned(), "3:9", "without the first /"),
        ("[[rule]]\nname = \"a\"\nmatch = { env = \"A-B\" }\n".to_owned(), "3:17", "the name of a variable"),
        ("[[rule]]\nname = \"a\"\nmatch = { exec = \"a\" }\n".to_owned(), "3:11", "unknown field `exec`"),
        (rule("lift = [\"code\"]"), "4:8", "found `code`, needed text or rodata"),
        (rule("pages = \"huge\""), "4:9", "found `huge`, needed auto"),
        (rule("keep = \"never\""), "4:8", "unknown variant `never`"),
        (rule("rollout = \"200%\""), "4:11", "from \"0%\" to \"100%\""),
        (rule("lift = [\"heap\"]\nkeep = \"if it pays\""), "5:8", "heap, which cannot be restored"),
        (rule("lift = [\"shared\"]"), "4:8", "shared, which cannot be restored"),
        (rule("lift = [\"data\"]\nkeep = \"always\""), "5:8", "without a budget"),
        (rule("lift = [\"rodata\"]\nallow = { lift = [\"text\"] }"), "4:8", "its allow.lift does not have"),
        (rule("allow = { lift = [] }"), "4:9", "allow.lift is empty"),
        (rule("allow = { lift = [\"anon\"] }\nkeep = \"if it pays\""), "5:8", "anon, which cannot be restored"),
        (rule("") + &rule(""), "6:8", "has this name already"),
        ("a = [".repeat(1000), "1:8", "unexpected"),
        ("\u{0}".to_owned(), "1:2", "key with no value"),
    ] {
        let errors = read(&text).unwrap_err();
        let shown = errors[0].to_string();
        if !shown.contains(message) || !shown.starts_with(&format!("50.toml:{place}: ")) {
            wrong.push(format!("needed {place} {message}\n{shown}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn settings_stand_once_in_all_files() {
    let file = |name: &str| ConfigFile { name: name.to_owned(), text: "[agent]\n".to_owned() };
    let errors = Configuration::read(&[file("1.toml"), file("2.toml")]).unwrap_err();
    assert!(errors[0].to_string().starts_with("2.toml:1:1: [agent] is at 1.toml:1 already"), "{errors:?}");
}

/// A lift that should have been measured is not kept silently.
#[test]
fn a_rule_that_is_measured_may_act() {
    let rule = "[agent]\nmode = \"act\"\n[[rule]]\nname = \"a\"\nmatch = { exe = \"*/a\" }\n";
    assert_eq!(read(rule).unwrap().rules[0].keep, Keep::IfItPays);
    for kind in ["data", "heap", "shared"] {
        let lasting = format!("{rule}lift = [\"text\", \"{kind}\"]\nmax_memory = \"8M\"\n");
        assert!(error(&lasting).contains("cannot be restored once it is lifted"), "{kind}");
        assert!(read(&format!("{lasting}keep = \"always\"\n")).is_ok(), "{kind}");
    }
}

#[test]
fn a_folder_is_read_in_the_order_of_names() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nmatch = {{ exe = \"*\" }}\n");
    write("90.toml", &rule("last"));
    write("10.toml", &rule("first"));
    write(".hidden.toml", "not a table");
    write("10.toml.bak", "not a table");
    let names: Vec<String> = read_folder(folder.path()).unwrap().rules.into_iter().map(|rule| rule.name).collect();
    assert_eq!(names, ["first", "last"]);
    assert_eq!(read_folder(&folder.path().join("none")).unwrap(), Configuration::default());
}

#[test]
fn hostile_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |expected: &str| {
        let errors = read_folder(folder.path()).unwrap_err();
        assert!(errors.iter().any(|error| error.to_string().contains(expected)), "{expected}: {errors:?}");
    };
    let file = folder.path().join("a.toml");
    fs::write(&file, [0x66, 0xff]).unwrap();
    refused("not UTF-8 after byte 1");
    fs::write(&file, " ".repeat((1 << 20) + 1)).unwrap();
    refused("more than 1024 KiB");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    refused("others could change the rules");
    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("not a regular file");
}

proptest! {
    #[test]
    fn no_text_panics(text in "(\\[agent\\]\n|\\[\\[rule\\]\\]\n)?[a-z\\[\\]{}=\"'#\\\\.,0-9\u{e4}\n -]{0,200}") {
        if let Err(errors) = read(&text) {
            errors.iter().for_each(|error| drop(error.to_string()));
        }
    }

    /// A damaged example is either understood or has an error with a line of the text.
    #[test]
    fn a_damaged_example_has_a_place(at in 0..EXAMPLE.len(), byte in "[ -~\n]") {
        prop_assume!(EXAMPLE.is_char_boundary(at) && EXAMPLE.is_char_boundary(at + 1));
        let text = format!("{}{byte}{}", &EXAMPLE[..at], &EXAMPLE[at + 1..]);
        for error in read(&text).err().into_iter().flatten() {
            let place = error.place.unwrap();
            prop_assert!(place.line <= text.lines().count() + 1);
        }
    }
}
