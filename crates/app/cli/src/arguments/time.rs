//! Times on the command line.

use clap::builder::TypedValueParser;
use options::{TimeRange, TimeUnit};
use std::time::Duration;

/// One day, which is the longest time of most measurements.
pub const DAY: Duration = Duration::from_secs(24 * 3600);
/// One second.
pub const SECOND: Duration = Duration::from_secs(1);
/// Upper bound for options that need none.
pub const LONGEST: Duration = Duration::from_secs(36_500 * 24 * 3600);

/// Reads a time in a range; a number alone is in seconds.
pub fn seconds(least: Duration, most: Duration) -> impl TypedValueParser<Value = Duration> {
    parser(TimeRange::new(least, most, TimeUnit::Seconds))
}

/// Reads a time in a range; a number alone is in milliseconds.
pub fn milliseconds(least: u64, most: u64) -> impl TypedValueParser<Value = Duration> {
    let [least, most] = [least, most].map(Duration::from_millis);
    parser(TimeRange::new(least, most, TimeUnit::Milliseconds))
}

/// Reads a time of any length; a number alone is in days.
pub fn days() -> impl TypedValueParser<Value = Duration> {
    parser(TimeRange::new(Duration::ZERO, LONGEST, TimeUnit::Days))
}

fn parser(range: TimeRange) -> impl TypedValueParser<Value = Duration> {
    move |text: &str| range.read(text)
}
