//! The evidence of signs: their likelihood if most blocks are on one side, relative to a fair coin.

/// Signs that were counted, block by block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Blocks.
    pub blocks: u32,
    /// Blocks on the side that the evidence is for.
    pub on_side: u32,
}

impl Signs {
    /// Counts one block.
    pub fn count(&mut self, is_on_side: bool) {
        self.blocks += 1;
        self.on_side += u32::from(is_on_side);
    }

    /// The natural logarithm of the e-value against "a block is on this side with probability ≤ ½".
    ///
    /// With n blocks, S on the side, the e-value is the likelihood ratio against ½, averaged over all probabilities
    /// between ½ and 1:
    ///
    /// ```text
    /// E(n, S) = ∫ 2 (2p)^S (2(1-p))^(n-S) dp = Σ(k ≤ S) C(n+1, k) / ((n+1) C(n, S))
    /// ```
    ///
    /// It is a nonnegative supermartingale as blocks are added. By Ville's inequality the probability that it ever reaches
    /// 1/α is at most α, however often it is read. It needs no variance, no normal distribution and no planned end.
    pub fn log_evidence(self) -> f64 {
        let (n, s) = (f64::from(self.blocks), f64::from(self.on_side.min(self.blocks)));
        // C(n+1, S) / ((n+1) C(n, S)), then the terms below S by their ratio.
        let mut term = 1.0 / (n + 1.0 - s);
        let (mut sum, mut log_scale) = (term, 0.0);
        let mut k = s;
        while k > 0.0 {
            term *= k / (n + 2.0 - k);
            sum += term;
            if sum > SCALE {
                (term, sum) = (term / SCALE, sum / SCALE);
                log_scale += SCALE.ln();
            }
            k -= 1.0;
        }
        sum.ln() + log_scale
    }

    /// True if the e-value has reached a number, for example 20 for α = 5 %.
    pub fn reaches(self, e_value: f64) -> bool {
        self.log_evidence() >= e_value.ln()
    }
}

/// Sums above this are divided by it, so that they stay finite for any number of blocks.
const SCALE: f64 = 1e200;

#[cfg(test)]
mod tests {
    use super::*;

    fn e_value(blocks: u32, on_side: u32) -> f64 {
        Signs { blocks, on_side }.log_evidence().exp()
    }

    /// Simpson's rule over ½ to 1 of 2 (2p)^S (2(1-p))^(n-S).
    fn integral(blocks: u32, on_side: u32) -> f64 {
        const STEPS: u32 = 4000;
        let step = 0.5 / f64::from(STEPS);
        let value = |number: u32| {
            let p = 0.5 + f64::from(number) * step;
            2.0 * (2.0 * p).powi(on_side as i32) * (2.0 * (1.0 - p)).powi((blocks - on_side) as i32)
        };
        let weight = |number: u32| match number {
            0 | STEPS => 1.0,
            _ if number % 2 == 1 => 4.0,
            _ => 2.0,
        };
        (0..=STEPS).map(|number| weight(number) * value(number)).sum::<f64>() * step / 3.0
    }

    #[test]
    fn the_sum_is_the_integral() {
        for blocks in 0..=30 {
            for on_side in 0..=blocks {
                let (sum, integral) = (e_value(blocks, on_side), integral(blocks, on_side));
                assert!((sum / integral - 1.0).abs() < 1e-6, "{on_side} of {blocks}: {sum} and {integral}");
            }
        }
    }

    /// The probability of each number of blocks on a side, of all sequences of independent signs. Sequences that reach the
    /// limit stop there: their probability is the second result.
    fn enumerated(blocks: u32, p: f64, limit: f64) -> (Vec<f64>, f64) {
        let (mut going_on, mut stopped) = (vec![1.0], 0.0);
        for number in 1..=blocks {
            let mut next = vec![0.0; number as usize + 1];
            for (on_side, probability) in going_on.iter().enumerate() {
                next[on_side] += probability * (1.0 - p);
                next[on_side + 1] += probability * p;
            }
            for (on_side, probability) in next.iter_mut().enumerate() {
                if e_value(number, on_side as u32) >= limit {
                    stopped += std::mem::take(probability);
                }
            }
            going_on = next;
        }
        (going_on, stopped)
    }

    #[test]
    fn the_mean_is_at_most_one_if_the_claim_is_false() {
        for blocks in 0..=20_u32 {
            for p in [0.5, 0.49, 0.3, 0.1, 0.0] {
                let (probabilities, stopped) = enumerated(blocks, p, f64::INFINITY);
                assert!(stopped == 0.0 && (probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                let of_count = |(on_side, probability): (usize, &f64)| probability * e_value(blocks, on_side as u32);
                let mean: f64 = probabilities.iter().enumerate().map(of_count).sum();
                assert!(mean <= 1.0 + 1e-12, "{blocks} blocks, p = {p}: {mean}");
                assert!(p < 0.5 || (mean - 1.0).abs() < 1e-12, "{blocks} blocks: a fair coin gives {mean}");
            }
        }
    }

    #[test]
    fn a_look_after_each_block_claims_no_more_than_alpha() {
        for (limit, alpha) in [(20.0, 0.05), (400.0, 0.0025)] {
            let (_, ever) = enumerated(100, 0.5, limit);
            assert!(ever > alpha / 10.0 && ever <= alpha, "{limit}: {ever}");
            let (_, if_true) = enumerated(100, 0.8, limit);
            assert!(if_true > 0.95, "{limit}: {if_true}");
        }
    }

    #[test]
    fn known_values_are_met() {
        assert!((e_value(7, 7) - 255.0 / 8.0).abs() < 1e-12 && (e_value(12, 12) - 8191.0 / 13.0).abs() < 1e-9);
        for (blocks, on_side) in [(60, 45), (100, 70)] {
            let values = [e_value(blocks, on_side - 1), e_value(blocks, on_side)];
            assert!(values[0] < 400.0 && values[1] >= 400.0, "{on_side} of {blocks}: {values:?}");
        }
        assert_eq!(e_value(0, 0), 1.0);
    }

    #[test]
    fn any_number_of_blocks_has_a_finite_logarithm() {
        let all = Signs { blocks: 100_000, on_side: 100_000 }.log_evidence();
        let expected = 100_001.0 * 2_f64.ln() - 100_001_f64.ln();
        assert!((all / expected - 1.0).abs() < 1e-9, "{all} and {expected}");
        assert!(Signs { blocks: 100_000, on_side: 0 }.log_evidence() < -10.0);
    }
}
