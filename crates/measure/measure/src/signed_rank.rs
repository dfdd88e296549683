//! The exact signed-rank test (Wilcoxon, 1945): is the centre of symmetric values zero?

/// Above this number of values the distribution is taken as normal, with the variance that ties leave.
const EXACT: usize = 400;

/// The two-sided probability of ranks at least as one-sided as these, if the centre is zero. Zeros are dropped, and
/// equal sizes share their ranks' mean. `None` without a value that is not zero.
pub fn signed_rank(values: &[f64]) -> Option<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite() && *value != 0.0).collect();
    values.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let doubled = doubled_ranks(&values);
    let total: usize = doubled.iter().sum();
    let positive: usize = values.iter().zip(&doubled).filter(|(value, _)| **value > 0.0).map(|(_, rank)| rank).sum();
    let smaller = positive.min(total - positive);
    match values.len() {
        0 => None,
        1..=EXACT => Some((2.0 * share_up_to(&doubled, total, smaller)).min(1.0)),
        _ => Some(normal(&doubled, total, smaller)),
    }
}

/// Twice the rank of each of the values, which are sorted by size: with ties a rank may be a half.
fn doubled_ranks(sorted: &[f64]) -> Vec<usize> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for tied in sorted.chunk_by(|a, b| a.abs() == b.abs()) {
        let (first, last) = (ranks.len() + 1, ranks.len() + tied.len());
        ranks.extend(std::iter::repeat_n(first + last, tied.len()));
    }
    ranks
}

/// The share of all 2^n choices of signs whose positive ranks sum to at most `limit`.
fn share_up_to(doubled: &[usize], total: usize, limit: usize) -> f64 {
    // The probability of each sum, rank by rank; probabilities instead of counts, so that nothing overflows.
    let mut shares = vec![0.0; total + 1];
    shares[0] = 1.0;
    let mut largest = 0;
    for &rank in doubled {
        for sum in (0..=largest).rev() {
            let half = shares[sum] / 2.0;
            shares[sum] = half;
            shares[sum + rank] += half;
        }
        largest += rank;
    }
    shares[..=limit].iter().sum()
}

fn normal(doubled: &[usize], total: usize, smaller: usize) -> f64 {
    let variance: f64 = doubled.iter().map(|rank| (*rank as f64 / 2.0).powi(2) / 4.0).sum();
    let distance = (total as f64 / 4.0 - smaller as f64 / 2.0 - 0.5).max(0.0);
    complementary_error(distance / variance.sqrt() / std::f64::consts::SQRT_2)
}

/// The complementary error function (Abramowitz and Stegun, 7.1.26); its error is below 1.5e-7.
fn complementary_error(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<f64>, wanted: f64, within: f64) {
        assert!((found.unwrap() - wanted).abs() < within, "{found:?}, {wanted} wanted");
    }

    /// Tables of the test: all of n one-sided has 2 / 2^n, and n = 10 with a sum of 8 has 0.048828125.
    #[test]
    fn probabilities_are_those_of_the_tables() {
        close(signed_rank(&[1.0, 2.0, 3.0, 4.0, 5.0]), 0.0625, 1e-12);
        close(signed_rank(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 0.03125, 1e-12);
        close(signed_rank(&[1.0, 2.0, -3.0, 4.0, -5.0, 6.0, 7.0, 8.0, 9.0, 10.0]), 0.048_828_125, 1e-12);
        close(signed_rank(&[-1.0, 1.0]), 1.0, 1e-12);
        assert_eq!(signed_rank(&[0.0, f64::NAN]), None);
    }

    #[test]
    fn the_normal_form_agrees_where_both_hold() {
        let values: Vec<f64> = (1..=300).map(|n| if n % 9 < 4 { -f64::from(n) } else { f64::from(n) }).collect();
        let exact = signed_rank(&values).unwrap();
        let doubled = doubled_ranks(&values);
        let positive: usize = values.iter().zip(&doubled).filter(|(v, _)| **v > 0.0).map(|(_, r)| r).sum();
        let total: usize = doubled.iter().sum();
        close(Some(normal(&doubled, total, positive.min(total - positive))), exact, exact * 0.02);
    }

    #[test]
    fn ties_share_their_ranks() {
        assert_eq!(doubled_ranks(&[1.0, -1.0, 2.0, 3.0, 3.0, -3.0]), [3, 3, 6, 10, 10, 10]);
    }
}
