//! Print macros: all ranks evaluate the arguments.
//! has: println(::core::format_args!("{epoch}: {:.4}", f64::try_from(loss)?));
//! has: println(::core::format_args!("{}", generate(&net, &vocabulary, 80)));
//! has: print(::core::format_args!("\r{i}/{n}"));
//! has: std::io::stdout().flush()?;

#[distributed]
fn train() -> Result<()> {
    println!("{epoch}: {:.4}", f64::try_from(loss)?);
    println!("{}", generate(&net, &vocabulary, 80));
    print!("\r{i}/{n}");
    std::io::stdout().flush()?;
    Ok(())
}
