//! The control of simulated experiments in which the experiment itself makes plain differ from plain: by the place of a
//! window in its block, by a switch before it, by the load of other servers, by the process.

use super::*;

/// Rates wander, and a window is slower because of preceding windows.
struct Machine {
    noise: Server,
    /// Loss of a window behind a switch.
    behind_switch: f64,
    /// Loss of the first window of a block.
    first: f64,
    /// Loss of a window whose server had no load in the window before it, for each window without load up to eight.
    idle: f64,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let noise = Server { random: Random::new(seed * 13 + 5), level: 0.0, factor: 1.0, noise: 0.01 };
        Self { noise, behind_switch: 0.0, first: 0.0, idle: 0.0 }
    }

    fn window(&mut self, loss: f64) -> Window {
        let window = self.noise.window(false);
        Window { work: window.work * (1.0 - loss), ..window }
    }

    /// Blocks of one program that is switched in place, whose arm changes nothing.
    fn toggled(&mut self, blocks: usize, seed: u64) -> Vec<Measured> {
        let of_block = |block: Block| {
            let window = |number: usize| {
                let switch = if BEHIND_A_SWITCH[number] { self.behind_switch } else { 0.0 };
                self.window(switch + if number == 0 { self.first } else { 0.0 })
            };
            Measured { block, start: 0, windows: [0, 1, 2, 3].map(window) }
        };
        Blocks::new(1, seed).take(blocks).map(of_block).collect()
    }

    /// Blocks of three servers over some starts. Each process gets a new random speed at each start.
    fn servers(&mut self, blocks: Blocks, starts: u32, of_each: usize) -> Vec<Measured> {
        let (mut measured, mut blocks) = (Vec::new(), blocks);
        for start in 0..starts {
            let speeds = [(); 3].map(|()| (0.01 * self.noise.normal()).exp());
            let mut idle = [0u32; 3];
            for block in blocks.by_ref().take(of_each) {
                let plain = if block.second_plain { 2 } else { 0 };
                let other = block.treatment.arm().map_or(2, |arm| arm + 1);
                let windows = block.treated().map(|treated| {
                    let server = if treated { other } else { plain };
                    let loss = self.idle * f64::from(idle[server].min(8));
                    idle = std::array::from_fn(|each| if each == server { 0 } else { idle[each] + 1 });
                    let window = self.window(loss);
                    Window { work: window.work * speeds[server], ..window }
                });
                measured.push(Measured { block, start, windows });
            }
        }
        measured
    }
}

/// Counts the experiments, of 100, whose interval includes a ratio of 1: for the control and for the arm.
fn holding(answers: impl Iterator<Item = Answer>) -> (usize, usize) {
    let holds = |arm: &ArmAnswer| usize::from(arm.ratio.is_some_and(|ratio| ratio.low <= 1.0 && 1.0 <= ratio.high));
    answers
        .take(100)
        .fold((0, 0), |(control, arm), answer| (control + holds(&answer.control), arm + holds(&answer.arms[0])))
}

fn machine(seed: u64, change: impl Fn(&mut Machine)) -> Machine {
    let mut machine = Machine::new(seed);
    change(&mut machine);
    machine
}

#[test]
fn what_a_switch_and_a_place_in_the_block_cost_moves_no_control() {
    for (behind_switch, first, blocks) in [(0.0, 0.0, 60), (0.08, 0.0, 60), (0.0, 0.08, 60), (0.05, 0.05, 24)] {
        let answers = (0..100).map(|seed| {
            let mut machine = machine(seed, |machine| {
                (machine.behind_switch, machine.first) = (behind_switch, first);
            });
            Answer::of(&machine.toggled(blocks, seed), 1, Per::CpuSecond, seed)
        });
        let (control, arm) = holding(answers);
        assert!(control >= 90 && arm >= 90, "{behind_switch} {first}: control {control}, arm {arm} of 100");
    }
}

#[test]
fn servers_that_were_idle_move_no_control() {
    for idle in [0.0, 0.002, 0.01] {
        let answers = (0..100).map(|seed| {
            let mut machine = machine(seed, |machine| machine.idle = idle);
            let blocks = Blocks::of_servers(1, seed);
            Answer::of(&machine.servers(blocks, 6, 18), 1, Per::CpuSecond, seed).over_starts()
        });
        let (control, arm) = holding(answers);
        assert!(control >= 90 && arm >= 90, "{idle}: control {control}, arm {arm} of 100");
    }
}

/// The order that was used before: the first plain server has half of all bursts, the others a quarter each.
#[test]
fn one_plain_server_for_all_arms_moved_the_control() {
    let answers = (0..100).map(|seed| {
        let mut machine = machine(seed, |machine| machine.idle = 0.01);
        let blocks = Blocks::new(1, seed);
        Answer::of(&machine.servers(blocks, 6, 18), 1, Per::CpuSecond, seed).over_starts()
    });
    let (control, _) = holding(answers);
    assert!(control < 70, "the control held in {control} of 100");
}
