//! The runners with workers whose times are scripted, so that the result is known.

use measure::MeasureError;
use measure::burst_run::{BurstRun, Observer, Running, Stop, Unobserved, VariantSpec};
use measure::comparison::{Verdict, compare};
use measure::sample::Clock;
use measure::start_up::{TimedRun, TimedVariant};
use std::process::Command;
use std::time::{Duration, Instant};

/// A shell that speaks the worker protocol: for each burst it runs `answer`, in which `$steps` and `$seed` are set.
fn scripted(name: &str, answer: &str) -> VariantSpec<'static> {
    let script = format!("echo pagelift-worker 1 work; while read -r word name steps lead seed; do {answer}; done");
    VariantSpec::new(name, move |_| {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&script);
        command
    })
}

fn run_of(variants: Vec<VariantSpec<'static>>, stop: Stop, generations: u32) -> BurstRun<'static> {
    BurstRun {
        variants,
        workloads: vec!["work".into()],
        seed: 3,
        burst: Duration::from_micros(100),
        lead_in_percent: 10,
        warm_up_rounds: 1,
        generations,
        stop,
        cpu: None,
        time_limit: Duration::from_secs(20),
    }
}

#[test]
fn scripted_times_come_out_as_their_ratio() {
    let variants = vec![
        scripted("slow", "echo done $((steps * 10)) $((steps * 10)) ab"),
        scripted("fast", "echo done $((steps * 8)) - ab"),
    ];
    let series = run_of(variants, Stop::Rounds(40), 4).run(&mut Unobserved).unwrap();
    assert_eq!(series.steps, [10_000]);
    assert_eq!(series.samples.iter().filter(|s| s.warm_up).count(), 4 * 2 * 2);
    assert_eq!(series.samples.iter().filter(|s| !s.warm_up).count(), 40 * 2);
    let c = compare(&series.samples, 0, 0, 1, Clock::Wall, 1).unwrap();
    assert!((c.ratio.centre - 0.8).abs() < 1e-9 && c.ratio.generations == 4, "{c:?}");
    assert!((c.difference.centre + 20_000.0).abs() < 1e-6, "{c:?}");
    assert_eq!(c.verdict(None), Verdict::Faster);
    assert!(compare(&series.samples, 0, 0, 1, Clock::Cpu, 1).is_none(), "`fast` did not read that clock");
}

/// If the first to start is a fifth faster, as long as it lives, the two halves of each generation cancel that.
#[test]
fn what_the_place_is_worth_cancels_where_places_are_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken").display().to_string();
    let placed = |name: &str, cost: u32| {
        let begin = format!("if mkdir {taken} 2>/dev/null; then place=8; trap 'rmdir {taken}' EXIT; else place=10; fi");
        let answer = format!("echo done $((steps * {cost} * place)) - ab");
        let script =
            format!("{begin}; echo pagelift-worker 1 work; while read -r word name steps lead seed; do {answer}; done");
        VariantSpec::new(name, move |_| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(&script);
            command
        })
    };
    let run = run_of(vec![placed("ten", 10), placed("nine", 9)], Stop::Rounds(2), 5);
    let series = run.run_exchanged(6, &mut Unobserved).unwrap();
    assert_eq!(series.samples.iter().filter(|s| !s.warm_up).count(), 5 * 2 * 6 * 2);
    let c = compare(&series.samples, 0, 0, 1, Clock::Wall, 1).unwrap();
    assert_eq!((c.rounds, c.ratio.generations), (5 * 2 * 6, 5));
    assert!([c.ratio.centre, c.ratio.low, c.ratio.high].iter().all(|ratio| (ratio - 0.9).abs() < 1e-9), "{c:?}");
}

#[test]
fn another_result_ends_the_run() {
    let variants = vec![scripted("right", "echo done 10 10 ab"), scripted("wrong", "echo done 10 10 cd")];
    match run_of(variants, Stop::Rounds(10), 1).run(&mut Unobserved) {
        Err(MeasureError::ChecksumsDiffer { workload, .. }) => assert_eq!(workload, "work"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_that_ends_is_named_with_its_status() {
    let variants = vec![scripted("steady", "echo done 10 10 1"), scripted("mortal", "exit 7")];
    match run_of(variants, Stop::Rounds(10), 1).run(&mut Unobserved) {
        Err(MeasureError::Died { variant, status }) => {
            assert_eq!(variant, "mortal");
            assert!(status.contains('7'), "{status}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_that_is_silent_is_given_up() {
    let mut run = run_of(vec![scripted("silent", ":")], Stop::Rounds(10), 1);
    run.time_limit = Duration::from_millis(200);
    assert!(matches!(run.run(&mut Unobserved), Err(MeasureError::Silent { .. })));
}

#[test]
fn what_cannot_start_or_has_no_such_workload_is_an_error() {
    let missing = VariantSpec::new("missing", |_| Command::new("/nonexistent/program"));
    let error = run_of(vec![missing], Stop::Rounds(2), 1).run(&mut Unobserved).unwrap_err();
    assert!(matches!(error, MeasureError::Start { .. }), "{error}");
    let mut run = run_of(vec![scripted("other", "echo done 1 1 1")], Stop::Rounds(2), 1);
    run.workloads = vec!["play".into()];
    let error = run.run(&mut Unobserved).unwrap_err().to_string();
    assert!(error.contains("no workload `play`"), "{error}");
    let error = run_of(Vec::new(), Stop::Rounds(2), 1).run(&mut Unobserved).unwrap_err();
    assert!(matches!(error, MeasureError::Nothing(_)), "{error}");
}

#[derive(Default)]
struct Watching {
    generations: Vec<u32>,
    processes: Vec<u32>,
    progress: Vec<f64>,
}

impl Observer for Watching {
    fn warmed_up(&mut self, generation: u32, variants: &[Running]) {
        assert_eq!(variants.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        self.generations.push(generation);
        self.processes.extend(variants.iter().map(|c| c.process_id));
    }
    fn progress(&mut self, done: f64) {
        self.progress.push(done);
    }
}

#[test]
fn the_time_budget_is_shared_by_the_generations_and_no_process_stays() {
    let variants = vec![scripted("one", "echo done 100 100 1"), scripted("two", "echo done 100 100 1")];
    let mut watching = Watching::default();
    let started = Instant::now();
    run_of(variants, Stop::Time(Duration::from_millis(400)), 3).run(&mut watching).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(400));
    assert_eq!(watching.generations, [0, 1, 2]);
    assert!(watching.progress.is_sorted() && watching.progress.last() == Some(&1.0));
    watching.processes.sort_unstable();
    watching.processes.dedup();
    assert_eq!(watching.processes.len(), 6, "every generation has processes of its own");
    for id in watching.processes {
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "{id} is still there");
    }
}

#[test]
fn timed_variants_are_interleaved_and_compared() {
    let time = |micros| move || Ok(Duration::from_micros(micros));
    let run = TimedRun {
        variants: vec![TimedVariant::new("slow", time(300)), TimedVariant::new("fast", time(100))],
        seed: 1,
        warm_up_rounds: 3,
        stop: Stop::Rounds(12),
        cpu: None,
    };
    let samples = run.run(&mut Unobserved).unwrap();
    assert_eq!(samples.iter().filter(|s| s.warm_up).count(), 8);
    assert_eq!(samples.iter().filter(|s| !s.warm_up).count(), 24);
    let c = compare(&samples, 0, 0, 1, Clock::Wall, 1).unwrap();
    assert!((c.difference.centre + 200_000.0).abs() < 1e-6, "{c:?}");
}

#[test]
fn processes_are_timed_to_their_end_and_must_succeed() {
    let process = |script: &'static str| {
        TimedVariant::process("shell", move || {
            let mut command = Command::new("sh");
            command.arg("-c").arg(script);
            command
        })
    };
    let run =
        |variant| TimedRun { variants: vec![variant], seed: 1, warm_up_rounds: 0, stop: Stop::Rounds(2), cpu: None };
    let samples = run(process("sleep 0.05")).run(&mut Unobserved).unwrap();
    assert!(samples.iter().all(|s| s.wall_nanoseconds >= 50_000_000), "{samples:?}");
    assert!(matches!(run(process("exit 3")).run(&mut Unobserved), Err(MeasureError::Died { .. })));
}

struct Impatient(u32);

impl Observer for Impatient {
    fn progress(&mut self, _: f64) {
        self.0 += 1;
    }
    fn is_interrupted(&self) -> bool {
        self.0 >= 3
    }
}

#[test]
fn an_observer_can_end_the_run() {
    let variants = vec![scripted("one", "echo done 100 100 1"), scripted("two", "echo done 100 100 1")];
    let run = run_of(variants, Stop::Time(Duration::from_secs(600)), 1).run(&mut Impatient(0));
    assert!(matches!(run, Err(MeasureError::Interrupted)), "{run:?}");
    let variants = vec![TimedVariant::new("variant", || Ok(Duration::from_micros(1)))];
    let run = TimedRun { variants, seed: 1, warm_up_rounds: 0, stop: Stop::Time(Duration::from_secs(600)), cpu: None };
    assert!(matches!(run.run(&mut Impatient(0)), Err(MeasureError::Interrupted)));
}
