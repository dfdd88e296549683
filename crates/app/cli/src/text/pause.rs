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
    format!(
        "all {threads} threads paused {:.1} ms at the longest, {:.1} ms in all; one thread {:.1} ms at the longest",
        ms(longest),
        ms(total),
        ms(longest_of_one)
    )
}
