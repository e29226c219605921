/// Loss of a row of logits for the actual next token: `-ln softmax(row)[token]`.
pub fn loss_in_nats(row: &[f32], token: u32) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    sum.ln() + max - f64::from(row[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_lose_the_logarithm_of_their_number() {
        assert!((loss_in_nats(&[3.0; 8], 5) - 8f64.ln()).abs() < 1e-12);
        assert!((loss_in_nats(&[1e30, 0.0], 0)).abs() < 1e-12);
    }
}
