//! Times on the command line.

use clap::builder::TypedValueParser;
use options::TimeRange;
use std::time::Duration;

/// One day, which is the longest time of most measurements.
pub const DAY: Duration = Duration::from_secs(24 * 3600);
/// One second.
pub const SECOND: Duration = Duration::from_secs(1);
/// Upper bound for options that need none.
pub const LONGEST: Duration = Duration::from_secs(36_500 * 24 * 3600);

/// Reads a time in a range; a number alone is in seconds.
pub fn seconds(least: Duration, most: Duration) -> impl TypedValueParser<Value = Duration> {
    parser(TimeRange::new(least, most))
}

/// Reads a time in a range of milliseconds; a number alone is an error.
pub fn milliseconds(least: u64, most: u64) -> impl TypedValueParser<Value = Duration> {
    let [least, most] = [least, most].map(Duration::from_millis);
    parser(TimeRange::with_unit(least, most))
}

/// Reads a time of any length, which is usually days; a number alone is an error.
pub fn days() -> impl TypedValueParser<Value = Duration> {
    parser(TimeRange::with_unit(Duration::ZERO, LONGEST))
}

fn parser(range: TimeRange) -> impl TypedValueParser<Value = Duration> {
    move |text: &str| range.read(text)
}
