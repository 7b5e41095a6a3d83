//! How two results are compared.
use anyhow::{Result, ensure};
use tch::{Kind, Tensor};

/// The largest difference, relative to the largest value of the expected tensor.
#[must_use]
pub fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    if expected.numel() == 0 {
        return 0.0;
    }
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let scale = expected.abs().max().double_value(&[]).max(f64::MIN_POSITIVE);
    (found - expected).abs().max().double_value(&[]) / scale
}

/// Requires that two lists of tensors agree; prints the largest error.
///
/// # Errors
/// Names the first tensor that is too far off.
pub fn close(what: &str, found: &[Tensor], expected: &[Tensor], limit: f64) -> Result<()> {
    ensure!(
        found.len() == expected.len(),
        "{what}: {} tensors, expected {}",
        found.len(),
        expected.len()
    );
    let mut worst: f64 = 0.0;
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        ensure!(
            found.defined() == expected.defined(),
            "{what}: tensor {index} is {}defined, expected the opposite",
            if found.defined() { "" } else { "un" }
        );
        if !expected.defined() {
            continue;
        }
        ensure!(
            found.size() == expected.size(),
            "{what}: tensor {index} has shape {:?}, expected {:?}",
            found.size(),
            expected.size()
        );
        let error = relative_error(found, expected);
        // Written so that a NaN fails too.
        ensure!(
            error <= limit,
            "{what}: tensor {index} of shape {:?} is off by {error:e}, allowed {limit:e}",
            expected.size()
        );
        worst = worst.max(error);
    }
    println!("{what}: {} tensors, largest relative error {worst:.1e}", expected.len());
    Ok(())
}
