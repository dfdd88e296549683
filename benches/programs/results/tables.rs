// Generic collections of the standard library, for the compiler to work on.
use std::collections::{BTreeMap, HashMap, VecDeque};

fn main() {
    let mut table: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut queue: VecDeque<(String, u32)> = (0..100).map(|n| (format!("text {n}"), n)).collect();
    while let Some((name, number)) = queue.pop_front() {
        *counts.entry(name.clone()).or_default() += 1;
        table.entry(name).or_default().push(number);
    }
    println!("{:?} {:?}", table.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>(), counts.len());
}
