//! Which rule a process meets.

use super::facts::Program;
use crate::rules::{Conditions, Pattern, Rule, Size, Time};
use core::time::Duration;
use std::fmt;

/// A condition that a process does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// The condition, by its word in the configuration.
    pub condition: &'static str,
    /// The value of the process.
    pub found: String,
    /// The value of the rule.
    pub needed: String,
    /// CPU time at which the process will meet it.
    pub met_at: Option<Duration>,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, needed {}", self.condition, self.found, self.needed)
    }
}

/// The outcome of trying all rules in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection<'a> {
    /// The first rule that the process meets.
    pub rule: Option<&'a Rule>,
    /// The rules before it, each with the first condition that is not met.
    pub tried: Vec<(&'a Rule, Unmet)>,
}

impl Selection<'_> {
    /// CPU time at which an earlier rule may be met, or any if none is now.
    pub fn changes_at(&self) -> Option<Duration> {
        self.tried.iter().filter_map(|(_, unmet)| unmet.met_at).min()
    }
}

/// Tries all rules in order.
pub fn select<'a>(rules: &'a [Rule], program: &Program, cpu: Duration) -> Selection<'a> {
    let mut tried = Vec::new();
    for rule in rules {
        match first_unmet(&rule.conditions, program, cpu) {
            None => return Selection { rule: Some(rule), tried },
            Some(unmet) => tried.push((rule, unmet)),
        }
    }
    Selection { rule: None, tried }
}

/// The first condition that the process does not meet. CPU time comes last: all other conditions last as long as the program.
fn first_unmet(conditions: &Conditions, program: &Program, cpu: Duration) -> Option<Unmet> {
    let unit = program.unit.as_deref().unwrap_or_default();
    let user = program.user.to_string();
    let user_name = program.user_name.as_deref().unwrap_or(&user);
    None.or_else(|| unmatched("exe", &conditions.exe, &[program.path()]))
        .or_else(|| unmatched("name", &conditions.name, &[program.file_name(), &program.name]))
        .or_else(|| unmatched("unit", &conditions.unit, &[unit]))
        .or_else(|| unmatched("cgroup", &conditions.cgroup, &[&program.cgroup]))
        .or_else(|| unmatched("user", &conditions.user, &[user_name, &user]))
        .or_else(|| without_variable(conditions, program))
        .or_else(|| {
            let needed = conditions.min_text.filter(|needed| program.text < *needed)?;
            let needed = format!("at least {}", Size(needed));
            Some(Unmet { condition: "min_text", found: Size(program.text).to_string(), needed, met_at: None })
        })
        .or_else(|| {
            let least = conditions.min_cpu.filter(|needed| cpu < *needed)?;
            let needed = format!("at least {}", Time(least));
            Some(Unmet { condition: "min_cpu", found: Time(cpu).to_string(), needed, met_at: Some(least) })
        })
}

fn unmatched(condition: &'static str, patterns: &[Pattern], found: &[&str]) -> Option<Unmet> {
    let is_met = patterns.is_empty() || patterns.iter().any(|pattern| found.iter().any(|text| pattern.matches(text)));
    let needed = || patterns.iter().map(|pattern| format!("\"{pattern}\"")).collect::<Vec<_>>().join(" or ");
    let shown = found.first().filter(|text| !text.is_empty()).map_or("none".to_owned(), |text| format!("\"{text}\""));
    (!is_met).then(|| Unmet { condition, found: shown, needed: needed(), met_at: None })
}

fn without_variable(conditions: &Conditions, program: &Program) -> Option<Unmet> {
    let wanted = conditions.env.as_ref()?;
    let value = program.environment.get(&wanted.name);
    let is_met = value.is_some_and(|value| wanted.value.as_ref().is_none_or(|pattern| pattern.matches(value)));
    let found = value.map_or("none".to_owned(), |value| format!("{}={value}", wanted.name));
    let needed = wanted.value.as_ref().map_or(wanted.name.clone(), |pattern| format!("{}={pattern}", wanted.name));
    (!is_met).then_some(Unmet { condition: "env", found, needed, met_at: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{ConfigFile, Configuration};

    fn rules(text: &str) -> Vec<Rule> {
        Configuration::read(&[ConfigFile { name: "a".to_owned(), text: text.to_owned() }]).unwrap().rules
    }

    fn rule(conditions: &str) -> Rule {
        rules(&format!("[[rule]]\nname = \"a\"\nmatch = {{ {conditions} }}")).remove(0)
    }

    fn postgres() -> Program {
        Program {
            exe: "/usr/lib/postgresql/15/bin/postgres (deleted)".to_owned(),
            name: "postmaster".to_owned(),
            unit: Some("postgresql@15-main.service".to_owned()),
            cgroup: "system.slice/postgresql@15-main.service".to_owned(),
            user: 111,
            user_name: Some("postgres".to_owned()),
            text: 8 << 20,
            environment: [("PAGELIFT_AGENT".to_owned(), "lift=text".to_owned())].into(),
            ..Program::default()
        }
    }

    #[test]
    fn each_condition_is_met_or_named_with_its_values() {
        let minute = Duration::from_secs(60);
        for (conditions, unmet) in [
            ("exe = \"*/bin/postgres\"", None),
            ("exe = \"/bin/*\"", Some("exe: found \"/usr/lib/postgresql/15/bin/postgres\", needed \"/bin/*\"")),
            ("name = \"postgres\"", None),
            ("name = \"postmaster\"", None),
            ("name = [\"a\", \"b\"]", Some("name: found \"postgres\", needed \"a\" or \"b\"")),
            ("unit = \"postgresql@*\"", None),
            (
                "cgroup = \"kubepods*\"",
                Some("cgroup: found \"system.slice/postgresql@15-main.service\", needed \"kubepods*\""),
            ),
            ("user = \"postgres\"", None),
            ("user = \"111\"", None),
            ("user = \"root\"", Some("user: found \"postgres\", needed \"root\"")),
            ("env = \"PAGELIFT_AGENT\"", None),
            ("env = \"PAGELIFT_AGENT=*text*\"", None),
            ("env = \"TIER=gold\"", Some("env: found none, needed TIER=gold")),
            ("min_text = \"8M\"", None),
            ("min_text = \"9M\"", Some("min_text: found 8.0 MiB, needed at least 9.0 MiB")),
            ("min_cpu = \"1min\"", None),
            ("min_cpu = \"90s\"", Some("min_cpu: found 60 s, needed at least 90 s")),
            ("exe = \"*\", user = \"root\"", Some("user: found \"postgres\", needed \"root\"")),
        ] {
            let rules = [rule(conditions)];
            let selection = select(&rules, &postgres(), minute);
            assert_eq!(selection.tried.first().map(|(_, unmet)| unmet.to_string()).as_deref(), unmet, "{conditions}");
            assert_eq!(selection.rule.is_some(), unmet.is_none(), "{conditions}");
        }
    }

    #[test]
    fn the_first_match_wins_and_earlier_rules_are_named() {
        let rule = |name: &str, exe: &str| format!("[[rule]]\nname = \"{name}\"\nmatch = {{ exe = \"{exe}\" }}\n");
        let rules = rules(&(rule("other", "/x") + &rule("first", "*postgres*") + &rule("second", "*")));
        let program = postgres();
        let selection = select(&rules, &program, Duration::ZERO);
        assert_eq!(selection.rule.map(|rule| rule.name.as_str()), Some("first"));
        assert_eq!(selection.tried.len(), 1);
    }

    #[test]
    fn a_process_is_selected_again_when_it_has_used_more() {
        let rules = [rule("exe = \"*\", min_cpu = \"20s\""), rule("exe = \"*\", min_cpu = \"10s\"")];
        let selection = select(&rules, &postgres(), Duration::from_secs(5));
        assert_eq!((selection.rule, selection.changes_at()), (None, Some(Duration::from_secs(10))));
    }
}
