use super::*;
use std::collections::BTreeMap;

/// Files with these texts.
pub struct Written(BTreeMap<&'static str, &'static str>);

impl Written {
    pub fn of(files: &[(&'static str, &'static str)]) -> Self {
        Self(files.iter().copied().collect())
    }
}

impl Files for Written {
    fn text(&self, path: &str) -> Option<String> {
        self.0.get(path).map(|text| format!("{text}\n"))
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        let inside = |file: &&str| Some(file.strip_prefix(path)?.strip_prefix('/')?.split('/').next()?.to_owned());
        self.0.keys().filter_map(inside).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

#[test]
fn the_ancestor_that_switched_them_off_is_found() {
    const OFF: &str = "PPid:\t1\nTHP_enabled:\t0";
    let files = Written::of(&[
        ("/proc/1/status", "PPid:\t0\nTHP_enabled:\t1"),
        ("/proc/5/status", OFF),
        ("/proc/5/comm", "manager"),
        ("/proc/6/status", "PPid:\t5\nTHP_enabled:\t0"),
        ("/proc/7/status", "PPid:\t6\nTHP_enabled:\t0"),
        ("/proc/8/status", "PPid:\t1\nTHP_enabled:\t1"),
    ]);
    let from = |pid, own| switched_off(&files, pid, own, false).map(|off| off.inherited_from);
    let manager = Some((5, "manager".to_owned()));
    assert_eq!(from(7, 99), Some(manager.clone()));
    assert_eq!(from(5, 99), Some(None), "made by itself");
    assert_eq!(from(5, 5), Some(manager), "this program did not make it");
    assert_eq!(from(8, 99), None);
    let advised = switched_off(&files, 8, 8, true).unwrap();
    assert!(advised.except_advised && advised.inherited_from.is_none());
}

#[test]
fn this_machine_can_be_examined() {
    let facts = gather(try_features(false), &Subject::Machine, Vec::new()).unwrap();
    assert!(facts.works(crate::facts::Feature::Trace) || facts.permission.ptrace_scope.is_some());
    let report = crate::examine(&facts);
    assert!(!report.fine.is_empty() && report.subject == "this machine", "{report:?}");
    let own = gather(try_features(false), &Subject::Process(std::process::id() as i32), Vec::new()).unwrap();
    let running = own.running().unwrap();
    assert!(running.code.0 > 0 && !running.foreign && own.permission.mappings.is_some_and(|mappings| mappings > 10));
    assert!(gather(try_features(false), &Subject::Process(-1), Vec::new()).is_err());
}
