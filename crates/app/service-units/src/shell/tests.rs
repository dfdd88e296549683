use super::*;
use crate::exec_start;
use proptest::prelude::*;

/// The unit's lines in MariaDB 10.11.19 of Debian 12.
const MARIADB: &str = "[Service]\nExecStart=/bin/sh -c \"set -f; [ ! -e /usr/bin/galera_recovery ] && VAR= || \\\n \
                       VAR=`/usr/bin/galera_recovery`; [ $? -eq 0 ] || exit 1; \\\n \
                       exec /usr/sbin/mariadbd $MYSQLD_OPTS $_WSREP_NEW_CLUSTER $VAR\"\n";

fn command(line: &str) -> ExecCommand {
    ExecCommand::parse_line(line).unwrap().remove(0)
}

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

fn called(paths: &[&str]) -> ExecutedPaths {
    ExecutedPaths { paths: owned(paths), ..ExecutedPaths::default() }
}

/// The programs executed by `exec`: the paths, and whether the shell becomes the program.
fn replaced(text: &str) -> (Vec<String>, bool) {
    let executed = executed_paths(text);
    (executed.paths, executed.replaces_shell)
}

fn by_exec(paths: &[&str]) -> (Vec<String>, bool) {
    (owned(paths), true)
}

#[test]
fn shells_are_known_by_their_names() {
    for path in ["/bin/sh", "/usr/bin/bash", "dash", "/opt/ksh", "/bin/zsh"] {
        assert!(is_shell(path), "{path}");
    }
    for path in ["/usr/sbin/mariadbd", "/bin/sh/server", "/bin/ssh", "/usr/bin/%i", ""] {
        assert!(!is_shell(path), "{path}");
    }
}

#[test]
fn the_server_of_mariadb_is_found() {
    let command = command(&exec_start([MARIADB])[0]);
    let text = command.shell_text().unwrap();
    assert!(text.starts_with("set -f; [ ! -e") && text.ends_with("$_WSREP_NEW_CLUSTER $VAR"), "{text}");
    let expected = ExecutedPaths { replaces_shell: true, ..called(&["/usr/sbin/mariadbd"]) };
    assert_eq!(executed_paths(&text), ExecutedPaths { others: owned(&["/usr/bin/galera_recovery"]), ..expected });
}

#[test]
fn the_text_is_what_the_options_leave() {
    for (line, expected) in [
        ("/bin/sh -c 'a b' c", Some("a b")),
        ("/bin/bash -lc a b", Some("a")),
        ("/bin/sh -ec a", Some("a")),
        ("/bin/sh -eo pipefail -c a", Some("a")),
        ("/bin/sh -c -e a", Some("a")),
        ("/bin/sh +e -c -- a", Some("a")),
        ("/bin/sh -c -- -a", Some("-a")),
        ("/bin/bash --rcfile /c -c a", Some("a")),
        ("/bin/bash --login -c a", Some("a")),
        ("@/bin/sh -sh -c a", Some("a")),
        ("/bin/sh -c 'a $$X 100%% /%i ${Y}'", Some("a $X 100% /\u{fffd} ${Y}")),
        (":/bin/sh -c 'a $$X'", Some("a $$X")),
        ("/bin/sh /usr/lib/start -c a", None),
        ("/bin/sh -- /usr/lib/start", None),
        ("/bin/sh -e /usr/lib/start", None),
        ("/bin/sh $OPTIONS -c a", None),
        ("/bin/sh -c", None),
        ("/bin/sh", None),
    ] {
        assert_eq!(command(line).shell_text().as_deref(), expected, "{line}");
    }
}

#[test]
fn what_exec_names_counts_before_all_else() {
    for (text, paths) in [
        ("exec /a/b -d", &["/a/b"][..]),
        ("/c/d; X=1 exec /a/b; /e/f", &["/a/b"]),
        ("exec -a name -l -c /a/b", &["/a/b"]),
        ("exec -cla 'a name' -- /a/b", &["/a/b"]),
        ("if [ -e /c/d ]; then exec /a/b; else exec '/e/f'; fi", &["/a/b", "/e/f"]),
        ("exec /a/b; exec \"/a/b\"", &["/a/b"]),
        (">/log/x 2>&1 exec </in/y /a/b >>/out", &["/a/b"]),
        ("exec /a/b &>/log", &["/a/b"]),
        ("[ -x /a/b ] && exec /a/b || exit 1", &["/a/b"]),
        ("{ exec /a/b; }", &["/a/b"]),
        ("exec \\\n /a/b", &["/a/b"]),
        // A program whose path is not known is the shell's process nevertheless.
        ("/c/d; exec server", &[]),
        ("/c/d; exec $SERVER; exec /a/*; exec \"/a/${X:-/b c}/d\"; exec /a/b?", &[]),
    ] {
        assert_eq!(replaced(text), by_exec(paths), "{text}");
    }
}

#[test]
fn a_copy_of_the_shell_is_not_the_shell() {
    for (text, paths) in [
        ("exec /a/b | /c/d", &["/a/b", "/c/d"][..]),
        ("/c/d | exec /a/b", &["/c/d", "/a/b"]),
        ("exec /a/b 2>&1 | logger", &["/a/b"]),
        ("exec /a/b & wait", &["/a/b"]),
        ("exec $X & /c/d", &["/c/d"]),
        ("/c/d; X=1 exec /a/b & /e/f", &["/c/d", "/a/b", "/e/f"]),
    ] {
        assert_eq!(executed_paths(text), called(paths), "{text}");
    }
    for (text, others) in [("/c/d | /e/f; exec /a/b", &["/c/d", "/e/f"][..]), ("true && exec /a/b || /c/d", &["/c/d"])]
    {
        let expected = ExecutedPaths { replaces_shell: true, others: owned(others), ..called(&["/a/b"]) };
        assert_eq!(executed_paths(text), expected, "{text}");
    }
    assert!(executed_paths("exec /a/b; exec $X").has_unknown && !executed_paths("exec /a/b").has_unknown);
}

#[test]
fn commands_begin_in_many_places() {
    for (text, paths) in [
        ("/a/b", &["/a/b"][..]),
        ("/a/b; X=1 Y='a b' /c/d --x /e/f\n/g/h", &["/a/b", "/c/d", "/g/h"]),
        ("true && /a/b | /c/d & /e/f", &["/a/b", "/c/d", "/e/f"]),
        ("( /a/b ) || { /c/d; }; ! /e/f", &["/a/b", "/c/d", "/e/f"]),
        ("X=$(/a/b /c) Y=`/d/e` Z+=1 /f/g", &["/a/b", "/d/e", "/f/g"]),
        ("echo \"x $(/a/b \"/c\" ) `/d/e`\" /f", &["/a/b", "/d/e"]),
        ("while /a/b; do /c/d; done", &["/a/b", "/c/d"]),
        ("case $1 in a) /a/b ;; (c) /c/d ;; esac", &["/a/b", "/c/d"]),
        ("(exec /a/b); /c/d `exec /e/f`", &["/a/b", "/c/d", "/e/f"]),
        ("exec 3>/log 2>&1; /a/b", &["/a/b"]),
        ("# exec /a/b\n/c/d#e # /f/g", &["/c/d#e"]),
        ("echo exec /a/b; cd /c/d; test -e /e/f", &[]),
        ("/a/; /a,b; a/b; ~/b; /a/$X; ${X:-/a b}/c; $((1 + 2)); '/a/${X}'; /a/\u{fffd}/b; '/a\u{1}b'", &[]),
        ("", &[]),
    ] {
        assert_eq!(executed_paths(text), called(paths), "{text}");
    }
}

#[test]
fn quotes_around_a_path_are_removed() {
    for (text, path) in [
        ("exec \"/usr/my server\"", "/usr/my server"),
        ("exec '/usr/my server' \"x", "/usr/my server"),
        ("exec /usr/'s'b\"in\"/x", "/usr/sbin/x"),
        ("exec /usr/my\\ server", "/usr/my server"),
        ("exec \"/usr/a\\b\\\"c\"", "/usr/a\\b\"c"),
        ("exec '/usr/a*b'", "/usr/a*b"),
    ] {
        assert_eq!(replaced(text), by_exec(&[path]), "{text}");
    }
}

#[test]
fn what_is_left_open_is_not_executed() {
    for text in ["/a/b; exec '/c/d", "/a/b; exec \"/c/d", "/a/b $(/c/d", "/a/b `/c/d", "/a/b ( /c/d", "/a/b ${/c/d"] {
        assert_eq!(executed_paths(text), called(&["/a/b"]), "{text}");
    }
    assert_eq!(replaced("exec /a/b \\"), by_exec(&["/a/b"]));
    assert_eq!(executed_paths(")) } /a/b"), called(&[]));
}

#[test]
fn a_long_text_ends() {
    const TIMES: usize = 100_000;
    for part in ["$(", "`", "(", "\"`", "'", "${", "\\", "a=", "<&", "/a/b;", "exec ", "\"$(\"", "#\n"] {
        let text = part.repeat(TIMES);
        assert!(executed_paths(&text).paths.len() <= 1, "{part}");
    }
    let many: String = (0..TIMES).map(|number| format!("/a/{number};")).collect();
    assert_eq!(executed_paths(&many).paths.len(), MOST_PATHS);
}

proptest! {
    #[test]
    fn any_text_gives_whole_paths(text in "[ -~\n]{0,64}", signs in "[$`'\"(){}\\\\;&|<># /ab=exc\n-]{0,64}") {
        for text in [text, signs] {
            for path in executed_paths(&text).paths {
                prop_assert!(path.starts_with('/') && !path.ends_with('/') && !path.contains(['$', ',']), "{path}");
            }
        }
    }

    #[test]
    fn a_quoted_path_is_found(path in "(/[ -~&&[^$,/']]{1,8}){1,4}") {
        let text = format!("true && exec -l '{path}' \"$@\"");
        prop_assert_eq!(replaced(&text), by_exec(&[&path]));
    }
}
