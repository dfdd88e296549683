//! A pause of a program in words.

use session::running::Pause;

/// Formats the time for which a program's threads were stopped.
pub fn pause(pause: Pause) -> String {
    let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1000.0;
    let Pause { longest, total, longest_of_one, threads } = pause;
    if threads == 0 {
        return match longest_of_one.is_zero() {
            true => "no thread paused".to_owned(),
            false => format!("one thread paused {:.1} ms at the longest", ms(longest_of_one)),
        };
    }
    if threads == 1 {
        return format!("its thread paused {:.1} ms at the longest, {:.1} ms in all", ms(longest), ms(total));
    }
    format!(
        "all {threads} threads paused {:.1} ms at the longest, {:.1} ms in all; one thread {:.1} ms at the longest",
        ms(longest),
        ms(total),
        ms(longest_of_one)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn threads_are_counted_in_grammar() {
        let of = |threads| {
            let ms = Duration::from_millis;
            pause(Pause { longest: ms(2), total: ms(3), longest_of_one: ms(1), threads })
        };
        assert_eq!(of(0), "one thread paused 1.0 ms at the longest");
        assert_eq!(of(1), "its thread paused 2.0 ms at the longest, 3.0 ms in all");
        let many = "all 2 threads paused 2.0 ms at the longest, 3.0 ms in all; one thread 1.0 ms at the longest";
        assert_eq!(of(2), many);
    }
}
