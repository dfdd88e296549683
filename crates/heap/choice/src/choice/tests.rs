use super::*;
use crate::allocator::AllocatorOrigin;
use std::collections::BTreeSet;

fn allocator(family: Family, place: AllocatorOrigin) -> Allocator {
    Allocator {
        family,
        place,
        preloaded: false,
        runtime: None,
        starts_threads: false,
        evidence: "a test".into(),
        settings: BTreeSet::new(),
    }
}

fn library() -> AllocatorOrigin {
    AllocatorOrigin::Library { path: "/lib/x.so".into() }
}

fn context(environment: &Environment) -> Context<'_> {
    Context {
        pages: HeapPages::Auto,
        forced: None,
        not_replaceable: None,
        thp: ThpMode::Madvise,
        grain: PageSize::new(1 << 21).unwrap(),
        library: Ok("/lib/heap.so".into()),
        pool: [NodePages::default(); heap_abi::MOST_NODES],
        chosen_nodes: false,
        only: String::new(),
        environment,
    }
}

fn variable<'a>(choice: &'a HeapChoice, name: &str) -> Option<&'a str> {
    choice.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn order(choice: &HeapChoice) -> Order<'_> {
    Order::parse(variable(choice, ORDER_VARIABLE).unwrap()).unwrap()
}

#[test]
fn glibc_is_told_where_that_reaches_the_whole_heap() {
    let environment = Environment::default().with("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
    let mut glibc = allocator(Family::Glibc { minor: Some(36) }, library());
    let choice = choose(&glibc, &context(&environment));
    assert_eq!(variable(&choice, "GLIBC_TUNABLES"), Some("glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"));
    assert!(choice.preload.is_none() && !choice.collapse);

    glibc.starts_threads = true;
    let choice = choose(&glibc, &context(&environment));
    assert!(choice.preload.is_some() && variable(&choice, "GLIBC_TUNABLES").is_none());
    glibc.family = Family::Glibc { minor: Some(43) };
    assert!(choose(&glibc, &context(&environment)).preload.is_none());
    glibc.family = Family::Glibc { minor: Some(31) };
    assert!(choose(&glibc, &context(&environment)).preload.is_some());
}

#[test]
fn what_the_user_has_set_is_left_alone() {
    let environment = Environment::default()
        .with("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")
        .with("JDK_JAVA_OPTIONS", "-XX:-UseTransparentHugePages")
        .with("PYTHONMALLOC", "debug")
        .with("LD_PRELOAD", "/mine.so");
    let glibc = allocator(Family::Glibc { minor: Some(36) }, library());
    assert!(choose(&glibc, &context(&environment)).variables.is_empty());
    let java = allocator(Family::Jvm, library());
    assert!(choose(&java, &context(&environment)).variables.is_empty());
    let python = Allocator { runtime: Some(Runtime::Python), ..glibc };
    let choice = choose(&python, &context(&environment));
    assert_eq!((variable(&choice, "PYTHONMALLOC"), order(&choice).python), (None, false));
    assert_eq!(variable(&choice, "LD_PRELOAD"), Some("/mine.so:/lib/heap.so"));
}

#[test]
fn python_s_small_objects_come_along_without_a_variable() {
    let environment = Environment::default();
    let python =
        |runtime| Allocator { runtime: Some(runtime), ..allocator(Family::Glibc { minor: Some(36) }, library()) };
    let choice = choose(&python(Runtime::Python), &context(&environment));
    // Its children would inherit one.
    assert_eq!((variable(&choice, "PYTHONMALLOC"), order(&choice).python), (None, true));
    let v8 = choose(&python(Runtime::V8), &Context { forced: Some(Forced::Mimalloc), ..context(&environment) });
    assert!(!order(&v8).python);

    let not_replaceable = Some("free-threaded");
    for forced in [None, Some(Forced::Mimalloc), Some(Forced::Own)] {
        let context = Context { not_replaceable, forced, ..context(&environment) };
        let choice = choose(&python(Runtime::FreeThreadedPython), &context);
        assert!(choice.variables.is_empty() && choice.collapse && choice.preload.is_none(), "{choice:?}");
    }
}

#[test]
fn each_jemalloc_is_told_what_it_understands() {
    let environment = Environment::default();
    let of = |version: &str| Family::Jemalloc { version: Some(version.into()), variable: "JE_MALLOC_CONF".into() };
    let mut context = context(&environment);
    let choice = choose(&allocator(of("5.3.0"), library()), &context);
    assert_eq!(variable(&choice, "JE_MALLOC_CONF"), Some("thp:always"), "purging stays as it is");
    assert!(choose(&allocator(of("4.2.0"), library()), &context).preload.is_some());
    context.not_replaceable = Some("a test");
    let old = Allocator {
        settings: BTreeSet::from(["opt.decay_time".into(), "opt.purge".into()]),
        ..allocator(of("4.2.0"), AllocatorOrigin::LinkedIn)
    };
    let choice = choose(&old, &context);
    assert!(choice.collapse && choice.variables.is_empty(), "it returns memory as before: {choice:?}");
    assert_eq!(choice.reasons.len(), 1, "{choice:?}");
}

#[test]
fn a_jemalloc_gets_no_setting_that_it_may_not_know() {
    let environment = Environment::default();
    let context = Context { not_replaceable: Some("a test"), ..context(&environment) };
    for (version, setting) in [
        (None, "opt.dirty_decay_ms"),
        (Some("5.0.1"), "opt.dirty_decay_ms"),
        (Some("4.0.4"), "opt.lg_dirty_mult"),
        (Some("3.6.0"), "opt.lg_dirty_mult"),
        (None, "opt.lg_dirty_mult"),
    ] {
        let family = Family::Jemalloc { version: version.map(str::to_owned), variable: "_RJEM_MALLOC_CONF".into() };
        let settings = BTreeSet::from([setting.to_owned()]);
        let of = Allocator { settings, ..allocator(family, AllocatorOrigin::LinkedIn) };
        let choice = choose(&of, &context);
        assert!(choice.variables.is_empty() && choice.collapse, "{version:?} {setting}: {choice:?}");
        let is_unknown = choice.reasons[0].contains("the version of this jemalloc is unknown");
        assert_eq!(is_unknown, version.is_none(), "{choice:?}");
    }
}

#[test]
fn the_pool_needs_a_heap_that_can_be_replaced() {
    let environment = Environment::default();
    let size = PageSize::new(1 << 30).unwrap();
    let mut context = Context { pages: HeapPages::Pool(size), ..context(&environment) };
    context.pool[0] = NodePages { node: 0, pages: 3 };
    let glibc = allocator(Family::Glibc { minor: Some(36) }, library());
    let choice = choose(&glibc, &context);
    assert_eq!(choice.preload, Some(Preload { pool_bytes: 3 << 30 }));
    let order = order(&choice);
    assert_eq!((order.page, order.pool[0].pages), (1 << 30, 3));

    context.not_replaceable = Some("a test");
    let choice = choose(&allocator(Family::Musl, AllocatorOrigin::LinkedIn), &context);
    assert!(choice.collapse && choice.preload.is_none() && choice.refusals.len() == 2, "{choice:?}");
    let choice = choose(&allocator(Family::Jvm, library()), &context);
    let java = "-XX:+UseLargePages -XX:LargePageSizeInBytes=1073741824";
    assert_eq!(variable(&choice, "JDK_JAVA_OPTIONS"), Some(java));
}

#[test]
fn nothing_is_promised_where_huge_pages_are_off() {
    let environment = Environment::default();
    let context = Context { thp: ThpMode::Never, ..context(&environment) };
    let choice = choose(&allocator(Family::Glibc { minor: Some(36) }, library()), &context);
    assert!(choice.variables.is_empty() && choice.refusals.len() == 1);
}

#[test]
fn the_user_may_override_the_choice() {
    let environment = Environment::default();
    let glibc = allocator(Family::Glibc { minor: Some(36) }, library());
    let with = |forced| choose(&glibc, &Context { forced: Some(forced), ..context(&environment) });
    assert!(with(Forced::Mimalloc).preload.is_some());
    assert!(with(Forced::Collapse).collapse && with(Forced::Collapse).variables.is_empty());
    assert!(variable(&with(Forced::Own), "GLIBC_TUNABLES").is_some());
}

#[test]
fn a_missing_library_is_said_and_the_next_way_taken() {
    let environment = Environment::default();
    let context = Context { library: Err("no libpagelift_heap.so".into()), ..context(&environment) };
    let threads = Allocator { starts_threads: true, ..allocator(Family::Glibc { minor: Some(36) }, library()) };
    let choice = choose(&threads, &context);
    assert!(variable(&choice, "GLIBC_TUNABLES").is_some() && choice.refusals == ["no libpagelift_heap.so"]);
}

#[test]
fn an_allocator_that_is_not_known_is_replaced_only_where_that_is_asked_for() {
    let environment = Environment::default().with("LD_PRELOAD", "/tracer.so");
    let size = PageSize::new(1 << 21).unwrap();
    for preloaded in [false, true] {
        let unknown = Allocator { preloaded, ..allocator(Family::Unknown, library()) };
        for pages in [HeapPages::Auto, HeapPages::Thp] {
            let choice = choose(&unknown, &Context { pages, ..context(&environment) });
            assert!(choice.preload.is_none() && choice.variables.is_empty() && choice.collapse, "{choice:?}");
            assert!(choice.reasons[0].contains("--heap-allocator mimalloc"), "{choice:?}");
        }
        let says = if preloaded { "what LD_PRELOAD of yours passes on" } else { "as you have asked" };
        for (pages, forced) in [(HeapPages::Pool(size), None), (HeapPages::Thp, Some(Forced::Mimalloc))] {
            let choice = choose(&unknown, &Context { pages, forced, ..context(&environment) });
            assert_eq!(variable(&choice, "LD_PRELOAD"), Some("/tracer.so:/lib/heap.so"));
            assert!(choice.reasons.iter().any(|reason| reason.contains(says)), "{choice:?}");
        }
    }
}

#[test]
fn a_tool_that_checks_memory_keeps_its_allocator() {
    let environment = Environment::default();
    let size = PageSize::new(1 << 21).unwrap();
    let checked = allocator(Family::Checker { tool: "AddressSanitizer" }, library());
    for forced in [None, Some(Forced::Own), Some(Forced::Mimalloc), Some(Forced::Collapse)] {
        for pages in [HeapPages::Auto, HeapPages::Thp, HeapPages::Pool(size)] {
            let choice = choose(&checked, &Context { pages, forced, ..context(&environment) });
            let expected = HeapChoice { refusals: choice.refusals.clone(), ..HeapChoice::default() };
            assert_eq!(choice, expected);
            assert!(choice.refusals.len() == 1 && choice.refusals[0].starts_with("AddressSanitizer"), "{choice:?}");
        }
    }
}
