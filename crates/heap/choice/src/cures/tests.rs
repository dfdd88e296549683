use super::*;
use crate::AllocatorOrigin;
use std::collections::BTreeSet;

fn allocator(family: Family, settings: &[&str]) -> Allocator {
    Allocator {
        family,
        place: AllocatorOrigin::LinkedIn,
        preloaded: false,
        runtime: None,
        starts_threads: true,
        evidence: String::new(),
        settings: settings.iter().map(|text| (*text).to_owned()).collect(),
    }
}

fn jemalloc(version: &str, settings: &[&str]) -> Allocator {
    let family = Family::Jemalloc { version: Some(version.to_owned()), variable: "MALLOC_CONF".to_owned() };
    allocator(family, settings)
}

fn ids(allocator: &Allocator) -> Vec<&'static str> {
    cures().of(allocator, &Flags::default()).into_iter().map(|cure| cure.id.as_str()).collect()
}

#[test]
fn each_entry_is_whole_and_has_its_source() {
    let data = cures();
    let ids: BTreeSet<&str> =
        data.cure.iter().map(|cure| cure.id.as_str()).chain(data.advice.iter().map(|a| a.id.as_str())).collect();
    assert_eq!(ids.len(), data.cure.len() + data.advice.len(), "an id stands twice");
    for cure in &data.cure {
        assert!(!cure.settings.is_empty() && !cure.costs.is_empty() && cure.source.contains("://"), "{}", cure.id);
        assert_eq!(cure.between.is_some(), cure.equals.is_some(), "{}", cure.id);
        assert!(cure.between.is_some() || cure.settings.len() == 1, "{} has one value", cure.id);
    }
    assert!(data.advice.iter().all(|advice| advice.source.contains("://") && !advice.says.is_empty()));
}

#[test]
fn a_cure_is_chosen_by_what_the_allocator_knows() {
    let five = ["opt.dirty_decay_ms"];
    assert_eq!(ids(&jemalloc("5.3.0", &five)), ["jemalloc-5", "jemalloc-5-calloc-thp"]);
    let newer = ["opt.dirty_decay_ms", "opt.calloc_madvise_threshold"];
    assert_eq!(ids(&jemalloc("5.3.1", &newer)), ["jemalloc-5", "jemalloc-5-calloc-threshold"]);
    assert_eq!(ids(&jemalloc("4.2.0", &["opt.decay_time", "opt.purge"])), ["jemalloc-4"]);
    assert_eq!(ids(&jemalloc("4.5.0", &["opt.decay_time", "opt.lg_dirty_mult"])), ["jemalloc-4"]);
    assert_eq!(ids(&jemalloc("3.6.0", &["opt.lg_dirty_mult"])), ["jemalloc-3"]);
    assert_eq!(ids(&jemalloc("3.6.0", &[])), [""; 0]);
    assert_eq!(ids(&allocator(Family::Mimalloc, &["allow_decommit"])), ["mimalloc-decommit"]);
    assert_eq!(ids(&allocator(Family::Mimalloc, &["purge_delay", "allow_decommit"])), ["mimalloc-purge-delay"]);
    assert_eq!(ids(&allocator(Family::Glibc { minor: Some(36) }, &[])), ["glibc"]);
    assert_eq!(ids(&allocator(Family::Glibc { minor: Some(17) }, &[])), [""; 0]);
    assert_eq!(ids(&allocator(Family::Go, &[])), [""; 0]);
    assert_eq!(ids(&allocator(Family::Pagelift, &["purge_delay"])), [""; 0], "it would end a part of it only");
}

#[test]
fn where_there_is_no_cure_there_is_advice() {
    let says = |allocator: &Allocator| cures().advice_for(allocator).map(|advice| advice.id.as_str());
    assert_eq!(says(&allocator(Family::Go, &[])), Some("go"));
    assert_eq!(says(&allocator(Family::Musl, &[])), Some("musl"));
    assert_eq!(says(&allocator(Family::Pagelift, &["purge_delay"])), Some("pagelift-heap"));
    assert_eq!(says(&allocator(Family::Tcmalloc, &[])), Some("tcmalloc-google"));
    assert_eq!(says(&allocator(Family::Tcmalloc, &["TCMALLOC_RELEASE_RATE"])), None);
    let node = Allocator { runtime: Some(Runtime::V8), ..allocator(Family::Glibc { minor: Some(36) }, &[]) };
    assert_eq!(says(&node), Some("v8"));
    for cause in ["numa-balancing", "ksm", "khugepaged", "migration", "reclaim", "fork", "copy-on-write"] {
        assert!(cures().advice_about(&format!("kernel-{cause}")).is_some(), "{cause}");
    }
}

#[test]
fn what_the_user_has_set_stays() {
    let jemalloc = jemalloc("5.3.0", &["opt.dirty_decay_ms"]);
    let cure = cures().of(&jemalloc, &Flags::default())[0];
    let plain = cure.applied("MALLOC_CONF", &Environment::default());
    assert_eq!(plain.value.as_deref(), Some("dirty_decay_ms:-1,muzzy_decay_ms:-1"));
    let environment = Environment::default().with("MALLOC_CONF", "narenas:2,dirty_decay_ms:0");
    let merged = cure.applied("MALLOC_CONF", &environment);
    assert_eq!(merged.value.as_deref(), Some("muzzy_decay_ms:-1,narenas:2,dirty_decay_ms:0"));
    let set = vec!["dirty_decay_ms".to_owned()];
    assert_eq!((merged.added, merged.stays, merged.against), (vec!["muzzy_decay_ms:-1".to_owned()], set.clone(), set));
    let environment = Environment::default().with("MALLOC_CONF", "dirty_decay_ms:0,dirty_decay_ms: -1");
    let equal = cure.applied("MALLOC_CONF", &environment);
    assert_eq!((equal.stays.len(), equal.against.len()), (1, 0));
}

#[test]
fn other_variables_of_the_user_count() {
    let glibc = allocator(Family::Glibc { minor: Some(36) }, &[]);
    let environment = Environment::default().with("MALLOC_TRIM_THRESHOLD_", "4096");
    let applied = cures().of(&glibc, &Flags::default())[0].applied("GLIBC_TUNABLES", &environment);
    assert_eq!(applied.stays, ["glibc.malloc.trim_threshold"]);
    assert!(applied.value.is_some_and(|value| !value.contains("trim_threshold") && value.contains("mmap_threshold")));
    let java = allocator(Family::Jvm, &[]);
    let environment = Environment::default().with("JAVA_TOOL_OPTIONS", "-Xmx1g -XX:MaxHeapFreeRatio=40");
    let applied = cures().of(&java, &Flags::default())[0].applied("JDK_JAVA_OPTIONS", &environment);
    assert_eq!((applied.value, applied.stays), (None, vec!["-XX:MaxHeapFreeRatio".to_owned()]));
}

#[test]
fn a_variable_of_one_value_is_not_merged() {
    let mimalloc = allocator(Family::Mimalloc, &["purge_delay"]);
    let cure = cures().of(&mimalloc, &Flags::default())[0];
    assert_eq!(cure.applied("MIMALLOC_PURGE_DELAY", &Environment::default()).value.as_deref(), Some("-1"));
    let set = Environment::default().with("MIMALLOC_PURGE_DELAY", "0");
    let applied = cure.applied("MIMALLOC_PURGE_DELAY", &set);
    assert_eq!((applied.value, applied.against), (None, vec!["MIMALLOC_PURGE_DELAY".to_owned()]));
}

#[test]
fn java_s_cure_is_that_of_its_collector() {
    let java = allocator(Family::Jvm, &[]);
    let value = |words: &[&str], environment: &Environment| {
        let flags = Flags::of(words.iter().map(|&word| word.to_owned()), environment);
        let cures = cures().of(&java, &flags);
        assert_eq!(cures.len(), 1, "{words:?}");
        cures[0].applied("JDK_JAVA_OPTIONS", environment).value.unwrap_or_default()
    };
    let none = Environment::default();
    assert_eq!(value(&["java", "-XX:+UseG1GC", "Main"], &none), "-XX:MaxHeapFreeRatio=100");
    assert_eq!(value(&["java", "-XX:+UseZGC", "Main"], &none), "-XX:-ZUncommit");
    let shenandoah = none.with("JDK_JAVA_OPTIONS", "-Xmx1g -XX:+UseShenandoahGC");
    let wanted = "-XX:+UnlockExperimentalVMOptions -XX:-ShenandoahUncommit -Xmx1g -XX:+UseShenandoahGC";
    assert_eq!(value(&["java", "Main"], &shenandoah), wanted);
}
