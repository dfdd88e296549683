//! The local time of the week (localtime(3)).

use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment of the week in local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Day, 0 for Monday.
    pub day: u32,
    /// Minute of the day.
    pub minute: u32,
}

/// Returns the present moment; `None` if the clock is out of the range of calendars.
pub fn local_time() -> Option<LocalTime> {
    local_time_of(SystemTime::now())
}

/// Returns a moment in local time.
fn local_time_of(time: SystemTime) -> Option<LocalTime> {
    let seconds = libc::time_t::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
    let mut broken_down = MaybeUninit::<libc::tm>::uninit();
    // SAFETY:
    // - both pointers are valid for the call, and localtime_r has no state that another thread of this program changes:
    //   nothing here sets variables of the environment.
    let result = unsafe { libc::localtime_r(&raw const seconds, broken_down.as_mut_ptr()) };
    if result.is_null() {
        return None;
    }
    // SAFETY:
    // - a call that succeeds has written the whole structure.
    let time = unsafe { broken_down.assume_init() };
    let day = u32::try_from(time.tm_wday).ok()?;
    let minute = u32::try_from(time.tm_hour * 60 + time.tm_min).ok()?;
    // Days of localtime begin with Sunday.
    Some(LocalTime { day: (day + 6) % 7, minute })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_begin_with_monday() {
        // 1970-01-05 was a Monday; zones differ from UTC by less than a day.
        let noon = |day: u64| local_time_of(UNIX_EPOCH + Duration::from_secs((4 + day) * 86_400 + 43_200)).unwrap();
        let days: Vec<u32> = (0..7).map(|day| noon(day).day).collect();
        assert!(days.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 7), "{days:?}");
        assert!([6, 0, 1].contains(&days[0]) && noon(0).minute < 1440, "{days:?}");
        assert_eq!(local_time_of(UNIX_EPOCH - Duration::from_secs(1)), None);
    }
}
