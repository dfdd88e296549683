//! The two text formats.

use super::families::{Family, Value, families};
use super::snapshot::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// Content type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A snapshot in OpenMetrics, for HTTP.
pub fn open_metrics(snapshot: &Snapshot) -> String {
    let mut buffer = String::new();
    match text::encode(&mut buffer, &registry(families(snapshot))) {
        Ok(()) => buffer,
        Err(fmt::Error) => String::new(),
    }
}

/// A snapshot in the text format 0.0.4, for files of node_exporter, which has its own `process_*` metrics.
pub fn classic(snapshot: &Snapshot) -> String {
    let mut families = families(snapshot);
    families.retain(|family| !family.name.starts_with("process_"));
    let mut buffer = String::new();
    match prometheus_text::encode(&mut buffer, &registry(families)) {
        Ok(()) => buffer,
        Err(fmt::Error) => String::new(),
    }
}

fn registry(families: Vec<Family>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    registry
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let Some((_, first)) = family.samples.first() else { continue };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind_of(first))?;
            for (labels, value) in &family.samples {
                match value {
                    Value::Info => metric.encode_info(labels)?,
                    value if labels.is_empty() => encode(&mut metric, value)?,
                    value => encode(&mut metric.encode_family(labels)?, value)?,
                }
            }
        }
        Ok(())
    }
}

fn kind_of(value: &Value) -> MetricType {
    match value {
        Value::Gauge(_) => MetricType::Gauge,
        Value::Counter(_) => MetricType::Counter,
        Value::Info => MetricType::Info,
        Value::Histogram(_) => MetricType::Histogram,
    }
}

fn encode(metric: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Gauge(number) => metric.encode_gauge(number),
        Value::Counter(number) => metric.encode_counter::<NoLabelSet, f64, f64>(number, None),
        Value::Histogram(pauses) => {
            metric.encode_histogram::<NoLabelSet>(pauses.sum(), pauses.count(), &pauses.buckets(), None)
        }
        Value::Info => Ok(()),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
