use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// The command that systemd would execute, computed independently of [`ExecCommand`]: `config_parse_exec()` and
/// `replace_env_argv()`.
#[derive(Debug, PartialEq, Eq)]
struct Executed {
    path: Vec<u8>,
    argv: Vec<Vec<u8>>,
    ignores_failure: bool,
    privileges: String,
}

/// `%i` is `instance 1`, and the variables have these values.
fn variables() -> HashMap<&'static str, &'static str> {
    HashMap::from([("ONE", "1"), ("TWO", "a b"), ("EMPTY", "")])
}

fn specifiers(word: &[u8]) -> Vec<u8> {
    let text = word.to_vec();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            (b'%', Some(b'%')) => out.push(b'%'),
            (b'%', Some(b'i')) => out.extend(b"instance 1"),
            (byte, _) => {
                out.push(byte);
                at += 1;
                continue;
            }
        }
        at += 2;
    }
    out
}

/// The words that one word becomes when variables are replaced.
fn expanded(word: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(word).into_owned();
    if let Some(name) = text.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
        let value = variables().get(name).copied().unwrap_or_default();
        return value.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
    }
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find('$') {
        out += &rest[..at];
        rest = &rest[at..];
        if let Some(next) = rest.strip_prefix("$$") {
            out.push('$');
            rest = next;
        } else if let Some((name, next)) = rest.strip_prefix("${").and_then(|rest| rest.split_once('}')) {
            out += variables().get(name).copied().unwrap_or_default();
            rest = next;
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    vec![(out + rest).into_bytes()]
}

fn executed(line: &str) -> Vec<Executed> {
    let mut all = Vec::new();
    let mut rest = line;
    while let Some((first, behind)) = first_word(rest).unwrap() {
        let first = String::from_utf8(first).unwrap();
        let signs = first.chars().take_while(|c| "-@:+!".contains(*c)).count();
        let (prefixes, path) = first.split_at(signs);
        let path = specifiers(path.as_bytes());
        let mut words = Vec::new();
        if !prefixes.contains('@') {
            words.push(path.clone());
        }
        rest = behind;
        let mut again = false;
        while !rest.is_empty() {
            if rest == ";" || rest.starts_with("; ") {
                rest = rest[1..].trim_start();
                again = true;
                break;
            }
            if rest == "\\;" || rest.starts_with("\\; ") {
                rest = rest[2..].trim_start();
                words.push(b";".to_vec());
                continue;
            }
            let (word, next) = first_word(rest).unwrap().unwrap();
            words.push(specifiers(&word));
            rest = next;
        }
        let expands = !prefixes.contains(':');
        all.push(Executed {
            path,
            argv: words.into_iter().flat_map(|word| if expands { expanded(&word) } else { vec![word] }).collect(),
            ignores_failure: prefixes.contains('-'),
            privileges: prefixes.chars().filter(|c| "+!".contains(*c)).collect(),
        });
        if !again {
            break;
        }
    }
    all
}

/// The command that the launcher would execute in turn, by the rules of `pagelift run`.
fn launched(mut by: Executed, launcher: &Launcher) -> Executed {
    assert_eq!(by.path, launcher.program.as_bytes());
    assert_eq!(by.argv.remove(0), launcher.program.as_bytes());
    for option in &launcher.options {
        assert_eq!(by.argv.remove(0), option.as_bytes());
    }
    let name = (by.argv[0] == b"--argv0").then(|| by.argv.drain(..2).nth(1).unwrap());
    assert_eq!(by.argv.remove(0), b"--");
    by.path = by.argv[0].clone();
    if let Some(name) = name {
        by.argv[0] = name;
    }
    by
}

fn launcher() -> Launcher {
    let options = ["run", "--pages=image", "--objects=exe,$a%i b"].map(str::to_owned).to_vec();
    Launcher { program: "/opt/page lift/pagelift".into(), options }
}

#[track_caller]
fn same(line: &str) {
    let plain = executed(line);
    let commands = ExecCommand::parse_line(line).unwrap();
    assert_eq!(commands.len(), plain.len(), "{line}");
    for (command, plain) in commands.iter().zip(plain) {
        let lifted = executed(&command.started_by(&launcher())).pop().unwrap();
        assert_eq!(launched(lifted, &launcher()), plain, "{line}");
    }
}

#[test]
fn each_prefix_is_kept() {
    let failure = ["", "-"];
    let named = ["", "@"];
    let variables = ["", ":"];
    let privileges = ["", "+", "!", "!!"];
    for a in failure {
        for b in named {
            for c in variables {
                for d in privileges {
                    for prefixes in [format!("{a}{b}{c}{d}"), format!("{d}{c}{b}{a}")] {
                        same(&format!("{prefixes}/bin/program name$ONE ${{TWO}} $TWO $$x %i"));
                        same(&format!("\"{prefixes}/bin/a program\" name '${{ONE}}'"));
                    }
                }
            }
        }
    }
}

#[test]
fn commands_mean_the_same() {
    for line in [
        "/usr/sbin/mariadbd $EMPTY $TWO ${TWO} $ONE",
        "/bin/sh -c 'echo $$HOME \"%i\" %%' ; /bin/echo two \\; words ; -/bin/false",
        "/bin/%i \"a  b\" 'c \\' d' e\\x20f \\s",
        "/opt/a\\sb/c ${ONE}x${TWO}",
        "@/bin/sh \"-login shell\" -c \"exit 0\"",
        "@/bin/sh %i --",
        ":/bin/echo $ONE $$ ${TWO}",
        "/bin/a$b $$c",
        "/bin/echo ';' \";\" a;b",
        "/bin/echo \\q \\z",
        "/bin/x --argv0 y -- z",
    ] {
        same(line);
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    for line in ["/bin/x 'open", "-", "/bin/", "/bin/a\\\\b", "@/bin/x", "'/bin/a\\'b'"] {
        assert!(matches!(ExecCommand::parse_line(line), Err(CommandError::Ignored { .. })), "{line}");
    }
    for line in ["@/bin/x $NAME", "@/bin/x a\\  b", "/bin/x \\  ; /bin/y", "|/bin/x", "/bin/${X}/y", "/bin/$$x", "$X"] {
        assert!(matches!(ExecCommand::parse_line(line), Err(CommandError::NotPossible { .. })), "{line}");
    }
    assert_eq!(ExecCommand::parse_line(" "), Ok(Vec::new()));
}

#[test]
fn what_systemd_shows_is_recognised() {
    let line = r#"-@"/bin/a b" --x '%i' "c  d" $$X \\q 100%% %I"#;
    for (shown, expected) in [
        ("/bin/a b --x 1 c  d $$X q 100% y z", true),
        ("/bin/a b --x  c  d $$X \\q 100% ", true),
        ("/bin/a b --x 1 c  d $$X q 100% y z more", true),
        ("/bin/a b --x 1 c  d $$X q 10% y", false),
        ("/bin/a --x 1 c  d $$X q 100% y", false),
        ("run /bin/a b --x 1 c  d $$X q 100% y", false),
        ("", false),
    ] {
        assert_eq!(shows(line, shown), expected, "{shown}");
    }
    assert!(shows("/bin/x y", "/bin/x y") && !shows("/bin/x y", "/bin/x y z") && !shows("/bin/x y", "/bin/x"));
    assert!(shows(r#"/bin/x "a\nb" c"#, "/bin/x a") && !shows(r#"/bin/x "a\nb" c"#, "/bin/y a"));
}

#[test]
fn paths_of_instances_are_told_from_others() {
    let command = |path: &str| ExecCommand { path: path.to_owned(), ..ExecCommand::default() };
    for (path, expected) in [
        ("/bin/%i", true),
        ("/bin/%N/x", true),
        ("/bin/%%i", false),
        ("/bin/%%%I", true),
        ("%h/x", false),
        ("/x%", false),
    ] {
        assert_eq!(command(path).names_instance(), expected, "{path}");
    }
    let versioned = command("/usr/lib/postgresql/%i/bin/%p-%%");
    assert!(versioned.may_be("/usr/lib/postgresql/15/bin/server-%"));
    assert!(!versioned.may_be("/usr/bin/pagelift") && !command("/bin/x").may_be("/bin/y"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_command_means_the_same(
        prefixes in "-?@?:?(\\+|!|!!)?",
        path in "/[a-z$%i]{1,6}",
        words in proptest::collection::vec("[a-c$%i{}\"' \\\\;x4]{1,8}", 1..6),
    ) {
        let line = format!("{prefixes}{} {}", path.replace("${", ""), words.join(" "));
        if let Ok(commands) = ExecCommand::parse_line(&line) {
            prop_assert!(!commands.is_empty());
            let all_known = commands.iter().all(|command| !command.path.contains(['"', '\'', '\\']));
            prop_assert!(all_known);
            same(&line);
        }
    }
}
