//! What a sequence costs: its tokens, plus attention's quadratic part.

/// `cost(n) = n + n² / L*`, in units of one token's dense work.
///
/// `L*` is the length at which attention takes as much work as the dense layers: dense FLOPs per
/// token ÷ (4 · heads · `head_dim` · layers).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    attention_scale: f64,
}

impl CostModel {
    /// Takes `L*` in tokens; a value that is not positive means that attention is free.
    #[must_use]
    pub fn new(attention_scale: f64) -> Self {
        Self { attention_scale }
    }

    /// Cost of one sequence of `num_tokens` tokens, never less than its tokens.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "lengths are far below 2^52"
    )]
    pub fn cost(self, num_tokens: u64) -> u64 {
        if self.attention_scale > 0.0 {
            let n = num_tokens as f64;
            num_tokens + (n * n / self.attention_scale).round() as u64
        } else {
            num_tokens
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_doubles_the_cost_at_its_scale() {
        let model = CostModel::new(3_840.0);
        assert_eq!(model.cost(3_840), 7_680);
        assert_eq!(model.cost(1), 1);
        assert_eq!(CostModel::new(0.0).cost(3_840), 3_840);
    }
}
