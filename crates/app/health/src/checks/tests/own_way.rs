//! Recommendations of the program's own settings, and words of processes in commands.

use super::*;

#[test]
fn the_program_s_own_way_is_recommended_where_it_suffices() {
    let of = |change: &dyn Fn(&mut ProgramFacts)| {
        let mut facts = healthy();
        let program = program_of(&mut facts);
        program.running = None;
        program.allocator = Some((Family::Glibc { minor: Some(44) }, "glibc 2.44".into()));
        program.lifts = vec![(Source::File, 20 * MIB)];
        change(program);
        let verdict = examine(&facts).verdict;
        (verdict.run.unwrap_or_default(), verdict.measure.unwrap_or_default())
    };
    let native = "GLIBC_TUNABLES=glibc.elf.thp=1 /usr/sbin/server '--name=a b'";
    let (run, measure) = of(&|_| {});
    assert_eq!(run, native);
    assert!(measure.starts_with("pagelift bench --against \"env GLIBC_TUNABLES=glibc.elf.thp=1 "), "{measure}");
    let by_pagelift = "pagelift run -- /usr/sbin/server '--name=a b'";
    assert_eq!(of(&|program| program.lifts.push((Source::Thp, MIB))).0, by_pagelift, "more than the page cache holds");
    let older = |program: &mut ProgramFacts| {
        program.allocator = Some((Family::Glibc { minor: Some(43) }, "glibc 2.43".into()));
    };
    assert_eq!(of(&older).0, by_pagelift);
    assert_eq!(of(&|program| program.environment = vec!["glibc.elf.thp=1".to_owned()]).0, by_pagelift, "it is set");
    let java = of(&|program| program.known = Known::Java);
    assert_eq!(java.0, "/usr/sbin/server -XX:+UseTransparentHugePages '--name=a b'");
}

/// A process chooses its command line, its cgroup and the names of its files.
#[test]
fn no_command_has_words_of_a_process_unquoted() {
    const EVIL: &str = "x'; touch /tmp/reached; '\u{1b}[31m";
    let mut facts = healthy();
    facts.thp.switched_off = Some(SwitchedOff { inherited_from: Some((5, "manager".into())), except_advised: false });
    facts.permission.unit = Some(EVIL.to_owned());
    facts.permission.seccomp = Some(2);
    let program = program_of(&mut facts);
    program.command = vec![EVIL.to_owned(), "$(touch /tmp/reached)".to_owned()];
    program.allocator = Some((Family::Glibc { minor: Some(44) }, "glibc 2.44".into()));
    let elsewhere = vec![NodeBytes { node: 0, bytes: 2 * MIB }];
    running_of(&mut facts).far_pages = vec![FarPages { path: EVIL.to_owned(), home: 1, of: 6 * MIB, elsewhere }];
    for known in [Known::Other, Known::Java] {
        program_of(&mut facts).known = known;
        let report = examine(&facts);
        let fixes = report.findings.iter().filter_map(|finding| finding.fix.as_ref());
        let commands: Vec<String> = fixes.flat_map(|fix| fix.typed(false)).collect();
        assert!(commands.len() > 3, "{commands:?}");
        let all = commands.into_iter().chain(report.verdict.run).chain(report.verdict.measure);
        all.for_each(|command| assert!(!command.contains("touch"), "{command}"));
    }
}
