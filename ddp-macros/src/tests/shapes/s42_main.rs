//! `fn main`, with other attributes.
//! has: #[allow(clippy::too_many_lines)] fn main() -> anyhow::Result<()>
//! has: Options::new("main")
//! has: #[cfg(feature = "extra")] println(

#[distributed]
#[allow(clippy::too_many_lines)]
fn main() -> anyhow::Result<()> {
    #[cfg(feature = "extra")]
    println!("extra");
    match std::env::args().nth(1) {
        Some(csv) => train(&csv),
        None => bail!("usage"),
    }
}
