//! Quiet hours: times of the week without new lifts.

use serde::Deserialize;
use std::fmt;

/// Days as they are written, Monday first.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MINUTES_OF_DAY: u32 = 24 * 60;

/// A moment of the week, in local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekTime {
    /// Day, 0 for Monday.
    pub day: u32,
    /// Minute of the day.
    pub minute: u32,
}

/// Hours such as `"Mon-Fri 08:00-18:00"`, `"Sun 00:00-24:00"` or `"22:00-06:00"` (every day, over midnight).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct QuietHours {
    text: String,
    days: [bool; 7],
    begin: u32,
    end: u32,
}

impl QuietHours {
    /// True if the hours include this moment. Hours over midnight belong to the day on which they begin.
    pub fn include(&self, now: WeekTime) -> bool {
        let on = |day: u32| self.days[(day % 7) as usize];
        if self.begin < self.end {
            return on(now.day) && (self.begin..self.end).contains(&now.minute);
        }
        on(now.day) && now.minute >= self.begin || on(now.day + 6) && now.minute < self.end
    }
}

impl TryFrom<String> for QuietHours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse(&text).ok_or_else(|| {
            format!("found \"{text}\"; needed: hours such as \"Mon-Fri 08:00-18:00\", \"Sun 00:00-24:00\" or \"22:00-06:00\"")
        })
    }
}

impl fmt::Display for QuietHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str) -> Option<QuietHours> {
    let (days, hours) = text.trim().rsplit_once(' ').unwrap_or(("Mon-Sun", text.trim()));
    let (begin, end) = hours.split_once('-')?;
    let (begin, end) = (minute(begin)?, minute(end)?);
    (begin != end && begin < MINUTES_OF_DAY).then_some(QuietHours {
        text: text.trim().to_owned(),
        days: days_of(days)?,
        begin,
        end,
    })
}

fn days_of(text: &str) -> Option<[bool; 7]> {
    let day = |name: &str| DAYS.iter().position(|day| *day == name.trim());
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // `Sat-Mon` goes over the end of the week.
        let length = (last + 7 - first) % 7;
        (0..=length).for_each(|offset| days[(first + offset) % 7] = true);
    }
    Some(days)
}

fn minute(text: &str) -> Option<u32> {
    let (hour, minute) = text.trim().split_once(':')?;
    let is_two_digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_two_digits(hour) || !is_two_digits(minute) {
        return None;
    }
    let (hour, minute): (u32, u32) = (hour.parse().ok()?, minute.parse().ok()?);
    let total = hour * 60 + minute;
    (minute < 60 && total <= MINUTES_OF_DAY).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hours(text: &str) -> QuietHours {
        QuietHours::try_from(text.to_owned()).unwrap()
    }

    fn at(day: u32, hour: u32) -> WeekTime {
        WeekTime { day, minute: hour * 60 }
    }

    #[test]
    fn working_hours() {
        let hours = hours("Mon-Fri 08:00-18:00");
        assert!(hours.include(at(0, 8)) && hours.include(at(4, 17)));
        assert!(!hours.include(at(0, 7)) && !hours.include(at(0, 18)) && !hours.include(at(5, 12)));
    }

    #[test]
    fn hours_over_midnight_belong_to_the_day_before() {
        let hours = hours("Fri,Sun 22:00-06:00");
        assert!(hours.include(at(4, 23)) && hours.include(at(5, 5)) && hours.include(at(0, 1)));
        assert!(!hours.include(at(4, 5)) && !hours.include(at(5, 23)) && !hours.include(at(1, 1)));
    }

    #[test]
    fn days_over_the_end_of_the_week() {
        let hours = hours("Sat-Mon 00:00-24:00");
        let quiet: Vec<u32> = (0..7).filter(|&day| hours.include(at(day, 12))).collect();
        assert_eq!(quiet, [0, 5, 6]);
    }

    #[test]
    fn refuses_what_is_no_time() {
        for text in [
            "",
            "Mon",
            "8:00-18:00",
            "08:00",
            "08:00-25:00",
            "24:00-01:00",
            "08:60-09:00",
            "Mo 08:00-09:00",
            "08:00-08:00",
        ] {
            assert!(QuietHours::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    proptest! {
        /// Hours and those from their end to their begin cover each moment exactly once.
        #[test]
        fn hours_and_their_complement_share_no_moment(begin in 0u32..1440, end in 0u32..1440, day in 0u32..7, minute in 0u32..1440) {
            prop_assume!(begin != end);
            let written = |from: u32, to: u32| format!("{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60);
            let now = WeekTime { day, minute };
            prop_assert_ne!(hours(&written(begin, end)).include(now), hours(&written(end, begin)).include(now));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,30}") {
            let _ = QuietHours::try_from(text);
        }
    }
}
