#[distributed(
    backend = "gloo",
    batch = "global",
    loss = "sum",
    sync_batch_norm,
    seed = 7,
    uneven = "join",
    accumulate = 4,
    print = "all",
    timeout = 300,
    bucket_mb = 25,
    compress = "bf16",
    crate = "engine::ddp"
)]
fn train() {
    work();
}

#[distributed(batch = "per_rank", sync_batch_norm = false, bucket_mb = 12.5, crate = "ddp")]
fn again() {
    println!();
}
