//! Requests in the environment of a process, within the limits of its rule.

use super::refusal::{Reason, Refusal};
use crate::rules::{Keep, Rule, intersection};
use address_space::parse_size;
use options::{Choice, Kind, Kinds, Pages};

/// The variable by which a program requests or refuses a lift.
pub const VARIABLE: &str = "PAGELIFT_AGENT";
/// Longest value that is read, in bytes.
const LONGEST: usize = 1024;

/// A lift to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Memory to lift.
    pub kinds: Kinds,
    /// Source of huge pages.
    pub pages: Pages,
    /// Most bytes that it may make resident.
    pub max_memory: Option<u64>,
    /// When it stays.
    pub keep: Keep,
}

impl Order {
    /// The words of its kinds.
    pub fn kind_words(&self) -> Vec<&'static str> {
        Kind::ALL.iter().filter(|named| self.kinds.contains(named.value)).map(|named| named.word).collect()
    }
}

/// The value of [`VARIABLE`].
#[derive(Clone, Debug, Default, PartialEq)]
struct Asked {
    off: bool,
    kinds: Option<Kinds>,
    pages: Option<Pages>,
    max_memory: Option<u64>,
}

fn read(value: &str) -> Result<Asked, String> {
    if value.len() > LONGEST {
        return Err(format!("found {} bytes, needed at most {LONGEST}", value.len()));
    }
    let mut asked = Asked::default();
    for word in value.split_whitespace() {
        match word.split_once('=') {
            None if word == "off" => asked.off = true,
            None if word == "on" => {}
            Some(("lift", kinds)) => {
                let kinds = kinds.split(',').map(Kind::from_word).collect::<Result<Vec<_>, _>>();
                asked.kinds = Some(Kinds::of(&kinds.map_err(|error| format!("lift: {error}"))?));
            }
            Some(("pages", pages)) => {
                asked.pages = Some(Pages::from_word(pages).map_err(|error| format!("pages: {error}"))?);
            }
            Some(("max-memory", size)) => {
                asked.max_memory = Some(parse_size(size).map_err(|error| format!("max-memory: {error}"))?);
            }
            _ => return Err(format!("found `{word}`, needed on, off, lift=KINDS, pages=PAGES or max-memory=SIZE")),
        }
    }
    Ok(asked)
}

/// The lift that a rule orders, narrowed by the environment of the process.
///
/// # Errors
/// The process is exempt, opts out, or requests something that the rule does not allow.
pub fn order(rule: &Rule, variable: Option<&str>) -> Result<Order, Refusal> {
    let asked = read(variable.unwrap_or_default());
    let refused = |reason, text: String| Err(Refusal::new(reason, text));
    let asked = match asked {
        Ok(Asked { off: true, .. }) => return refused(Reason::OptedOut, format!("{VARIABLE}=off in its environment")),
        Ok(asked) => asked,
        Err(why) => return refused(Reason::BadRequest, format!("{VARIABLE} in its environment: {why}")),
    };
    let allowed = rule.allow.as_ref().map_or(rule.kinds, |allow| allow.kinds);
    let kinds = intersection(asked.kinds.unwrap_or(rule.kinds), allowed);
    if rule.kinds.is_empty() {
        return refused(Reason::Exempt, format!("rule \"{}\" has lift = []", rule.name));
    }
    if kinds.is_empty() {
        return refused(
            Reason::NotAllowed,
            format!("{VARIABLE} requests no memory that rule \"{}\" allows", rule.name),
        );
    }
    let pages = pages(rule, asked.pages)?;
    let most = rule.allow.as_ref().and_then(|allow| allow.max_memory);
    let max_memory = [rule.max_memory, most, asked.max_memory].into_iter().flatten().min();
    Ok(Order { kinds, pages, max_memory, keep: rule.keep })
}

/// The source of pages: the one that the process requests, if the rule allows it.
fn pages(rule: &Rule, asked: Option<Pages>) -> Result<Pages, Refusal> {
    let list = |pages: &[Pages]| pages.iter().map(|pages| pages.word()).collect::<Vec<_>>().join(", ");
    let Some(allow) = &rule.allow else {
        // `auto` includes all others.
        let pages = asked.filter(|_| rule.pages == Pages::Auto).unwrap_or(rule.pages);
        return match asked {
            Some(wanted) if wanted != pages && wanted != Pages::Auto => Err(Refusal::new(
                Reason::NotAllowed,
                format!("{VARIABLE} requests pages={}, rule \"{}\" allows {}", wanted.word(), rule.name, pages.word()),
            )),
            _ => Ok(pages),
        };
    };
    let all = allow.pages.len() == Pages::ALL.len();
    let usual = if all || allow.pages.contains(&rule.pages) { Some(rule.pages) } else { allow.pages.first().copied() };
    match asked.or(usual) {
        Some(pages) if all || allow.pages.contains(&pages) => Ok(pages),
        found => Err(Refusal::new(
            Reason::NotAllowed,
            format!(
                "{VARIABLE} requests pages={}, rule \"{}\" allows {}",
                found.map_or("none", Pages::word),
                rule.name,
                list(&allow.pages)
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{ConfigFile, Configuration};
    use proptest::prelude::*;

    fn rule(rest: &str) -> Rule {
        let text = format!("[[rule]]\nname = \"a\"\nmatch = {{ exe = \"*\" }}\n{rest}\n");
        Configuration::read(&[ConfigFile { name: "a".to_owned(), text }]).unwrap().rules.remove(0)
    }

    fn reason(rule: &Rule, variable: &str) -> Reason {
        order(rule, Some(variable)).unwrap_err().reason
    }

    #[test]
    fn the_environment_narrows() {
        let plain = rule("");
        assert_eq!(order(&plain, None).unwrap().kind_words(), ["text", "rodata"]);
        assert_eq!(order(&plain, Some("lift=text,heap pages=thp")).unwrap().kind_words(), ["text"]);
        assert_eq!(order(&plain, Some("pages=thp")).unwrap().pages, Pages::Thp);
        assert_eq!(reason(&rule("pages = \"file\""), "pages=thp"), Reason::NotAllowed);
        assert_eq!(order(&rule("pages = \"file\""), Some("on pages=auto")).unwrap().pages, Pages::File);
        assert_eq!(reason(&plain, "off"), Reason::OptedOut);
        assert_eq!(reason(&plain, "lift=text off"), Reason::OptedOut);
        assert_eq!(reason(&plain, "lift=heap"), Reason::NotAllowed);
        assert_eq!(reason(&plain, "lift=all"), Reason::BadRequest);
        assert_eq!(reason(&plain, "colour=red"), Reason::BadRequest);
        assert_eq!(reason(&plain, &" ".repeat(LONGEST + 1)), Reason::BadRequest);
        assert_eq!(reason(&rule("lift = []"), "on"), Reason::Exempt);
    }

    #[test]
    fn a_rule_allows_more_than_it_lifts_by_itself() {
        let rule = rule(
            "lift = [\"text\"]\nkeep = \"always\"\nallow = { lift = [\"text\", \"anon\"], pages = [\"thp\", \"file\"], max_memory = \"8M\" }",
        );
        assert_eq!(order(&rule, None).unwrap().kind_words(), ["text"]);
        assert_eq!(order(&rule, None).unwrap().pages, Pages::Thp);
        let asked = order(&rule, Some("lift=anon pages=file max-memory=9M")).unwrap();
        assert_eq!((asked.kind_words(), asked.pages, asked.max_memory), (vec!["anon"], Pages::File, Some(8 << 20)));
        assert_eq!(order(&rule, Some("max-memory=1M")).unwrap().max_memory, Some(1 << 20));
        assert_eq!(reason(&rule, "pages=hugetlb"), Reason::NotAllowed);
    }

    proptest! {
        /// For any request, a process gets only what its rule allows.
        #[test]
        fn nobody_gets_more_than_the_rule_allows(text in "(lift=(text|anon|heap|rodata)(,(data|text))? |pages=(thp|file|auto|hugetlb) |max-memory=[0-9]M |off |x ){0,4}") {
            let rule = rule("allow = { lift = [\"text\"], pages = [\"thp\"], max_memory = \"4M\" }\nlift = [\"text\"]");
            if let Ok(order) = order(&rule, Some(&text)) {
                prop_assert_eq!(order.kind_words(), ["text"]);
                prop_assert_eq!(order.pages, Pages::Thp);
                prop_assert!(order.max_memory.unwrap() <= 4 << 20 && !text.contains("off"));
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = order(&rule(""), Some(&text));
        }
    }
}
