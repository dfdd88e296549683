//! A program, a machine and a policy, ready to be lifted.

use crate::support::{Program, base_page, machine_with, page_size, programs};
use address_space::{Address, PageSize};
use lift_execution::{LiftOutcome, execute};
use lift_plan::{
    CachedFile, Edges, ImageSpan, MachineFacts, Method, NodeFacts, Nodes, Numa, NumaFacts, Pages, Plan, Policy,
    ProcessFacts, WritablePages, plan,
};
use lift_simulation::simulated::{
    Call, Script, SimulatedFile, SimulatedImage, SimulatedKernel, SimulatedMachine, SimulatedThp,
};
use std::collections::BTreeMap;

/// Everything that a run needs.
#[derive(Clone)]
pub struct Scenario {
    pub name: String,
    pub facts: MachineFacts,
    pub policy: Policy,
    pub process: ProcessFacts,
    pub plan: Plan,
    /// The process before anything is done.
    pub kernel: SimulatedKernel,
    pub machine: SimulatedMachine,
}

/// A run that is over.
pub struct Run<'a> {
    pub before: &'a SimulatedKernel,
    pub kernel: SimulatedKernel,
    pub outcome: LiftOutcome,
}

impl Scenario {
    pub fn new(program: &Program, policy: &Policy, facts: &MachineFacts, machine: SimulatedMachine) -> Self {
        let machine =
            SimulatedMachine { images: images_of(&program.facts), files: files_of(&program.facts), ..machine };
        let kernel = SimulatedKernel::new(machine.clone(), &program.facts.space, &program.facts.touched);
        // The kernel joins some mappings; the planner sees them as maps shows them.
        let process = ProcessFacts { space: kernel.mappings(), ..program.facts.clone() };
        let plan = plan(&process, facts, policy);
        let name = format!(
            "{} {:?} writable {:?} {:?} movable {} images {} in place {} holds threads {}",
            program.name,
            policy.pages,
            policy.writable_pages,
            policy.edges,
            machine.movable_hugetlb,
            machine.images.len(),
            machine.maps_in_place,
            machine.holds_threads
        );
        Self { name, facts: facts.clone(), policy: policy.clone(), process, plan, kernel, machine }
    }

    /// Returns this scenario on a different machine, which the plan knows.
    pub fn planned_for(&self, program: &Program, differ: impl FnOnce(&mut SimulatedMachine)) -> Self {
        let mut machine = self.machine.clone();
        differ(&mut machine);
        let facts = MachineFacts { max_mappings: machine.max_mappings as u64, ..self.facts.clone() };
        Self::new(program, &self.policy, &facts, machine)
    }

    /// Returns this scenario's plan in another state of the machine.
    pub fn on(&self, kernel: SimulatedKernel) -> Self {
        Self { kernel, ..self.clone() }
    }

    /// Lifts with failures.
    pub fn run(&self, script: &Script) -> Run<'_> {
        self.run_on(&self.kernel, script)
    }

    pub fn run_on<'a>(&self, before: &'a SimulatedKernel, script: &Script) -> Run<'a> {
        let mut kernel = before.clone();
        kernel.follow(script.clone());
        let outcome = execute(&self.plan, &self.process.space, &mut kernel);
        Run { before, kernel, outcome }
    }

    /// The process on a machine that has less than the plan was made for.
    pub fn short_of(&self, shorten: impl FnOnce(&mut SimulatedMachine)) -> SimulatedKernel {
        let mut machine = self.machine.clone();
        shorten(&mut machine);
        SimulatedKernel::new(machine, &self.process.space, &self.process.touched)
    }

    /// The calls of a run in which nothing fails.
    pub fn calls(&self) -> Vec<Call> {
        self.run(&Script::new()).kernel.log().iter().map(|(call, _)| *call).collect()
    }

    pub fn moves_aside(&self) -> bool {
        let parts = self.plan.lifts.iter().flat_map(|lift| &lift.attempts).flat_map(|attempt| &attempt.parts);
        parts.into_iter().any(|part| matches!(part.method, Method::MoveAside { .. }))
    }
}

/// The images that the planner knows of, as files.
fn images_of(process: &ProcessFacts) -> Vec<SimulatedImage> {
    let image = |span: &ImageSpan| SimulatedImage {
        path: span.path.clone(),
        page_size: span.page_size,
        shows: vec![(span.offset, span.range)],
    };
    process.images.iter().map(image).collect()
}

/// The files in huge folios that the planner knows of.
fn files_of(process: &ProcessFacts) -> Vec<SimulatedFile> {
    let file = |file: &CachedFile| SimulatedFile {
        path: file.path.clone(),
        own_path: file.own_path.clone(),
        huge: file.huge.clone(),
    };
    process.cached.iter().map(file).collect()
}

/// A machine that has every feature, and the planner's facts about it.
pub fn machine(size: PageSize, movable_hugetlb: bool, at_fault: bool) -> (MachineFacts, SimulatedMachine) {
    let pages = 4096;
    let both: Nodes = (0..2).collect();
    let node = |node| NodeFacts { node, pools: vec![(size, pages)], memory: u64::MAX / 2 };
    let (nodes, cpus) = (both.iter().map(node).collect(), both.clone());
    let numa = NumaFacts { nodes, allowed: both, bound: None, running_on: Some(0), cpus };
    let facts = MachineFacts { movable_hugetlb, numa: Some(numa), ..machine_with(size.bytes(), pages) };
    let machine = SimulatedMachine {
        base_page: base_page(),
        pools: BTreeMap::from([(size, pages)]),
        pool_charge: u64::MAX,
        pool_on_bound_nodes: u64::MAX,
        images: Vec::new(),
        files: Vec::new(),
        refaults_huge: facts.refaults_huge,
        maps_in_place: true,
        holds_threads: false,
        thp: Some(SimulatedThp { size, left: pages, at_fault, splits_every: None }),
        movable_hugetlb,
        collapse: true,
        max_mappings: 65_530,
        top: Address(programs::TOP),
    };
    (facts, machine)
}

/// The scenarios of one program: every policy, with and without images, each plan once.
pub fn scenarios_of(program: &Program) -> Vec<Scenario> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    let mut add_on = |program: &Program, policy: Policy, movable_hugetlb, differ: &dyn Fn(&mut SimulatedMachine)| {
        let (facts, mut machine) = machine(page_size(programs::HUGE), movable_hugetlb, true);
        differ(&mut machine);
        let scenario = Scenario::new(program, &policy, &facts, machine);
        let of = |machine: &SimulatedMachine| (machine.maps_in_place, machine.holds_threads);
        let is_same = |other: &Scenario| other.plan == scenario.plan && of(&other.machine) == of(&scenario.machine);
        if !scenarios.iter().any(is_same) {
            scenarios.push(scenario);
        }
    };
    for pages in [Pages::Auto, Pages::Hugetlb, Pages::Thp] {
        let attached = |machine: &mut SimulatedMachine| (machine.holds_threads, machine.maps_in_place) = (true, false);
        add_on(program, Policy { pages, ..Policy::default() }, true, &attached);
    }
    let mut add = |program: &Program, policy: Policy, movable_hugetlb, maps_in_place| {
        let differ = |machine: &mut SimulatedMachine| machine.maps_in_place = maps_in_place;
        add_on(program, policy, movable_hugetlb, &differ);
    };
    for (pages, movable_hugetlb) in [(Pages::Auto, true), (Pages::Hugetlb, false)] {
        add(program, Policy { pages, numa: Numa::Node(1), ..Policy::default() }, movable_hugetlb, true);
    }
    let imaged = program.clone().imaged(programs::HUGE);
    let cached = program.clone().all_cached();
    let partly = imaged.clone().all_partly_cached(programs::HUGE);
    for edges in [Edges::Exact, Edges::MergeReadOnly] {
        for pages in [Pages::Auto, Pages::Hugetlb, Pages::Thp] {
            for writable_pages in [WritablePages::Thp, WritablePages::Hugetlb] {
                for movable_hugetlb in [true, false] {
                    add(program, Policy { pages, writable_pages, edges, ..Policy::default() }, movable_hugetlb, true);
                }
            }
        }
        for pages in [Pages::Auto, Pages::Image] {
            for maps_in_place in [true, false] {
                add(&imaged, Policy { pages, edges, ..Policy::default() }, true, maps_in_place);
            }
        }
        for pages in [Pages::Auto, Pages::File] {
            add(&cached, Policy { pages, edges, ..Policy::default() }, true, true);
        }
        for maps_in_place in [true, false] {
            add(&partly, Policy { pages: Pages::FileThenImage, edges, ..Policy::default() }, true, maps_in_place);
        }
    }
    scenarios
}
