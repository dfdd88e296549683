//! Enough Rust for a compiler to work on for a second.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Value {
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Table(BTreeMap<String, Value>),
}

pub fn parse(text: &str) -> Result<Value, String> {
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inner.split(',').map(|part| parse(part.trim())).collect::<Result<_, _>>().map(Value::List);
    }
    if text.contains('=') {
        let mut table = BTreeMap::new();
        for (key, value) in text.split(';').filter_map(|pair| pair.split_once('=')) {
            table.insert(key.trim().to_string(), parse(value.trim())?);
        }
        return Ok(Value::Table(table));
    }
    Ok(text.parse().map(Value::Number).unwrap_or_else(|_| Value::Text(text.to_string())))
}

pub fn print(value: &Value, into: &mut String) -> std::fmt::Result {
    match value {
        Value::Number(number) => write!(into, "{number}"),
        Value::Text(text) => write!(into, "{text:?}"),
        Value::List(list) => list.iter().try_for_each(|v| print(v, into)),
        Value::Table(table) => table.iter().try_for_each(|(k, v)| write!(into, "{k}").and_then(|()| print(v, into))),
    }
}

pub fn count(words: &[&str]) -> Vec<(String, usize)> {
    let mut table: HashMap<&str, usize> = HashMap::new();
    for word in words {
        *table.entry(word).or_default() += 1;
    }
    let mut sorted: Vec<_> = table.into_iter().map(|(word, n)| (word.to_string(), n)).collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sorted
}
