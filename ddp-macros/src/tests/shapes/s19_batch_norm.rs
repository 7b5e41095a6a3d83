//! Models are built as they were.
//! has: nn::seq_t().add(nn::conv2d(p / "c", 3, 16, 3, Default::default()))

#[distributed]
fn train() -> Result<()> {
    let net = nn::seq_t()
        .add(nn::conv2d(p / "c", 3, 16, 3, Default::default()))
        .add(nn::batch_norm2d(p / "bn", 16, Default::default()));
    Ok(())
}
