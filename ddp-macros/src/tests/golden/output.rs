#[distributed]
fn output() {
    println!();
    std::println!("{epoch}: {:.4}", f64::try_from(loss)?);
    print!("\r{i}/{n}");
    eprint!("{n}", n = count());
    match level {
        1 => println!("one"),
        2 => log::info!("two"),
        _ => eprintln!("{}", dbg!(level)),
    }
    let tell = |x: i64| println!("{x}");
    let both = dbg!(left + 1, &right);
    dbg!();
    log::info!("epoch {epoch} loss {mean:.4}");
    log::warn!("still here");
    tracing::debug!(target: "loop", ?loss);
    #[cfg(debug_assertions)]
    println!("debug");
    let bar = indicatif::ProgressBar::new(n).with_message("epoch");
    let spinner = ProgressBar::new_spinner();
    writeln!(table, "{epoch},{mean}")?;
    tch::manual_seed(42);
    manual_seed(seed);
}
