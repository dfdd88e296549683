//! Circles of modules, found in the text of a crate's sources.
//!
//! A module uses another one if its code has a path to it: `crate::a::b`, `super::a`, a child's `a::b`. A re-exported
//! name (`pub use a::Name`) belongs to the module that defines it. A module and its children may use each other, as in
//! Rust's own library.

use std::collections::{BTreeMap, BTreeSet};

/// The names of a path: `["a", "b"]` for the module `a::b`, none for the crate's root.
type Names = Vec<String>;

/// Limit of modules through which a name is re-exported.
const MOST_HOPS: usize = 8;

/// The modules of a crate.
#[derive(Default)]
pub struct Crate {
    /// The code of each module, without comments and tests.
    modules: BTreeMap<Names, String>,
    /// The re-exports of each module from its children, by their exported names.
    given_on: BTreeMap<Names, BTreeMap<String, Names>>,
}

impl Crate {
    /// Adds the file at `path` below the crate's `src`.
    pub fn add(&mut self, path: &str, code: String) {
        let mut names: Names = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        names.pop_if(|last| last == "mod" || last == "lib");
        self.modules.insert(names, code);
    }

    /// A line for each use between modules of one circle.
    pub fn circles(&mut self) -> Vec<String> {
        self.find_given_on();
        let uses: BTreeMap<&Names, BTreeSet<Names>> =
            self.modules.iter().map(|(module, code)| (module, self.used_by(module, code))).collect();
        let reached: BTreeMap<&Names, BTreeSet<&Names>> = uses.keys().map(|from| (*from, reach(from, &uses))).collect();
        let mut found = Vec::new();
        for (from, to) in uses.iter().flat_map(|(from, all)| all.iter().map(move |to| (*from, to))) {
            if reached.get(to).is_some_and(|reached| reached.contains(from)) {
                found.push(format!("{} uses {}", from.join("::"), to.join("::")));
            }
        }
        found
    }

    fn find_given_on(&mut self) {
        for (module, code) in &self.modules {
            let mut names = BTreeMap::new();
            for at in code.match_indices("use ").map(|(at, word)| at + word.len()) {
                for path in paths_at(code[at..].trim_start_matches("self::")) {
                    let inside = [module.as_slice(), &path[..1]].concat();
                    if let (true, Some(last)) = (path.len() > 1 && self.modules.contains_key(&inside), path.last()) {
                        names.insert(last.clone(), [module.as_slice(), &path].concat());
                    }
                }
            }
            self.given_on.insert(module.clone(), names);
        }
    }

    /// Modules that a module uses, without itself, its parents and its children.
    fn used_by(&self, module: &Names, code: &str) -> BTreeSet<Names> {
        let mut used = BTreeSet::new();
        for (at, _) in code.match_indices("::") {
            let start = code[..at].rfind(|c: char| !is_part_of_name(c)).map_or(0, |before| before + 1);
            if code[..start].ends_with("::") {
                continue;
            }
            let (mut base, mut rest) = (module.clone(), &code[start..]);
            if let Some(absolute) = rest.strip_prefix("crate::") {
                (base, rest) = (Names::new(), absolute);
            } else {
                rest = rest.strip_prefix("self::").unwrap_or(rest);
                while let Some(outer) = rest.strip_prefix("super::") {
                    base.pop();
                    rest = outer;
                }
            }
            used.extend(paths_at(rest).into_iter().map(|path| self.defined_in(&base, &path, MOST_HOPS)));
        }
        used.retain(|other| !other.is_empty() && !other.starts_with(module) && !module.starts_with(other));
        used
    }

    /// The module that defines the item of a path from `base`.
    fn defined_in(&self, base: &[String], path: &[String], hops: usize) -> Names {
        let mut module = base.to_vec();
        for (index, name) in path.iter().enumerate() {
            let inside = [module.as_slice(), std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&inside) {
                module = inside;
                continue;
            }
            match self.given_on.get(&module).and_then(|names| names.get(name)) {
                Some(target) if hops > 0 => {
                    return self.defined_in(&[], &[target.as_slice(), &path[index + 1..]].concat(), hops - 1);
                }
                _ => return module,
            }
        }
        module
    }
}

fn reach<'a>(from: &Names, uses: &'a BTreeMap<&Names, BTreeSet<Names>>) -> BTreeSet<&'a Names> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for other in uses.get(module).into_iter().flatten() {
            if reached.insert(other) {
                next.push(other);
            }
        }
    }
    reached
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of the use tree, or of the expression, at the start of `code`: two for `a::{b, c::D}`.
fn paths_at(code: &str) -> Vec<Names> {
    let mut paths = Vec::new();
    read_tree(code, &[], &mut paths);
    paths
}

/// Reads a tree. Returns the code after it.
fn read_tree<'a>(code: &'a str, before: &[String], paths: &mut Vec<Names>) -> &'a str {
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',', '*']);
            let behind = if rest.starts_with('}') { rest } else { read_tree(rest, before, paths) };
            if behind.len() == rest.len() {
                return rest.get(1..).unwrap_or_default();
            }
            rest = behind;
        }
    }
    let end = code.find(|c: char| !is_part_of_name(c)).unwrap_or(code.len());
    let (name, rest) = code.split_at(end);
    if name.is_empty() {
        return rest;
    }
    let path = [before, &[name.to_owned()]].concat();
    match rest.strip_prefix("::").filter(|rest| rest.starts_with(|c| is_part_of_name(c) || c == '{')) {
        Some(rest) => read_tree(rest, &path, paths),
        None => {
            paths.push(path);
            rest
        }
    }
}
