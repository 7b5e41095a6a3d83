//! Forms of save.
//! has: (&&&&type_of(&vs)).save_by_type("last.ot", |__ddp_path| vs.save(__ddp_path)).unwrap();
//! has: if let Err(err) = (&&&&type_of(&vs)).save_by_type(format!("{epoch}.ot"), |__ddp_path| vs.save(__ddp_path)) { eprintln(
//! has: new_folder(std::fs::create_dir(&run_dir))?; checkpoint::write(&run_dir, &vs, epoch)?;

#[distributed]
fn train() -> Result<()> {
    vs.save("last.ot").unwrap();
    if let Err(err) = vs.save(format!("{epoch}.ot")) {
        eprintln!("{err}");
    }
    std::fs::create_dir(&run_dir)?;
    checkpoint::write(&run_dir, &vs, epoch)?;
    Ok(())
}
