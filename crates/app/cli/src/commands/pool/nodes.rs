//! Places pages of the pools on the NUMA nodes from which a lift takes them.

use anyhow::bail;
use lift_plan::{Nodes, NumaFacts, Reason, nodes_for};
use machine_facts::{System, numa_facts};
use options::Numa;
use pools::{PoolRequest, on_each_of, spread_over};

/// Requests with their nodes, and notes for the reader.
pub struct Placed {
    /// The requests; on a machine with one node as they were.
    pub requests: Vec<PoolRequest>,
    /// Why pages are needed twice.
    pub note: Option<String>,
}

/// Places the pages that a lift with `numa` takes: of process `pid`, or of a program that this process starts.
pub fn placed(requests: &[PoolRequest], numa: Numa, pid: Option<i32>) -> anyhow::Result<Placed> {
    let process = pid.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
    place(requests, numa, pid.is_some(), numa_facts(&System, &process, &[]).as_ref())
}

/// `runs`: the facts are about the program itself. `facts`: none on a machine with one node.
fn place(requests: &[PoolRequest], numa: Numa, runs: bool, facts: Option<&NumaFacts>) -> anyhow::Result<Placed> {
    let Some(facts) = facts else {
        return match numa {
            Numa::Node(node) if node != 0 => refused(&Reason::NodeForbidden { node, allowed: Nodes::from_iter([0]) }),
            _ => Ok(Placed { requests: requests.to_vec(), note: None }),
        };
    };
    let candidates: Vec<u32> = facts.cpus.within(&facts.allowed).iter().collect();
    if numa == Numa::Local && !runs && candidates.len() > 1 {
        let note = format!(
            "--numa local takes all pages from the node on which the program starts, which is unknown in advance: they \
             are planned on {} each",
            facts.cpus.within(&facts.allowed)
        );
        return Ok(Placed { requests: on_each_of(requests, &candidates), note: Some(note) });
    }
    let nodes = match (numa, candidates.as_slice()) {
        (Numa::Local, &[node]) if !runs => nodes_for(facts, Numa::Node(node)),
        _ => nodes_for(facts, numa),
    };
    match nodes {
        Ok(nodes) => Ok(Placed { requests: spread_over(requests, &nodes.iter().collect::<Vec<_>>()), note: None }),
        Err(reason) => refused(&reason),
    }
}

fn refused(reason: &Reason) -> anyhow::Result<Placed> {
    match reason.fix() {
        Some(fix) => bail!("{reason}; fix: {fix}"),
        None => bail!("{reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(allowed: &[u32], bound: Option<u32>, cpus: &[u32]) -> NumaFacts {
        let set = |numbers: &[u32]| numbers.iter().copied().collect::<Nodes>();
        let bound = bound.map(|node| set(&[node]));
        NumaFacts { allowed: set(allowed), bound, cpus: set(cpus), running_on: Some(1), ..NumaFacts::default() }
    }

    fn texts(numa: Numa, runs: bool, facts: Option<&NumaFacts>) -> Vec<String> {
        let request = "2M:9".parse().unwrap();
        let placed = place(&[request], numa, runs, facts).unwrap();
        assert_eq!(placed.note.is_some(), numa == Numa::Local && placed.requests.len() > 1);
        placed.requests.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pages_lie_where_the_lift_takes_them() {
        let both = facts(&[0, 1], None, &[0, 1]);
        assert_eq!(texts(Numa::Node(1), false, Some(&both)), ["2M:9@1"]);
        assert_eq!(texts(Numa::Interleave, false, Some(&both)), ["2M:5@0", "2M:4@1"]);
        assert_eq!(texts(Numa::Own, false, Some(&both)), ["2M:5@0", "2M:4@1"]);
        let bound = facts(&[0, 1], Some(1), &[0, 1]);
        assert_eq!(texts(Numa::Own, true, Some(&bound)), ["2M:9@1"]);
        assert_eq!(texts(Numa::Interleave, true, Some(&bound)), ["2M:5@0", "2M:4@1"]);
        assert_eq!(texts(Numa::Own, false, Some(&facts(&[1], None, &[0, 1]))), ["2M:9@1"]);
        assert_eq!(texts(Numa::Own, false, None), ["2M:9"]);
    }

    #[test]
    fn a_program_that_may_start_on_either_node_needs_all_pages_on_both() {
        let both = facts(&[0, 1], None, &[0, 1]);
        assert_eq!(texts(Numa::Local, false, Some(&both)), ["2M:9@0", "2M:9@1"]);
        assert_eq!(texts(Numa::Local, true, Some(&both)), ["2M:9@1"]);
        assert_eq!(texts(Numa::Local, false, Some(&facts(&[0, 1], None, &[0]))), ["2M:9@0"]);
    }

    #[test]
    fn a_node_that_may_not_be_used_is_an_error_with_its_fix() {
        let wrong = |numa, facts: Option<&NumaFacts>| place(&[], numa, false, facts).err().unwrap().to_string();
        let first = facts(&[0], None, &[0, 1]);
        let expected = "node 1 is not one it may take memory from, found node 0; fix: --numa node=0, or a cpuset with the \
                        wanted node";
        assert_eq!([wrong(Numa::Node(1), Some(&first)), wrong(Numa::Node(1), None)], [expected, expected]);
    }
}
