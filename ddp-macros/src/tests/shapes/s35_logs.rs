//! Log macros: information by the main rank, warnings and errors by all.
//! has: if logs(Level::Info) { log::info!("epoch {epoch} loss {mean:.4}"); }
//! has: writeln!(table, "{epoch},{mean}")?;
//! has: tch::vision::image::save(&picture, format!("{epoch}.png"))?;
//! has: warn!("slow"); error!("bad"); __ddp_scope.leave_result(Ok(()))

#[distributed]
fn train() -> Result<()> {
    log::info!("epoch {epoch} loss {mean:.4}");
    writeln!(table, "{epoch},{mean}")?;
    tch::vision::image::save(&picture, format!("{epoch}.png"))?;
    warn!("slow");
    error!("bad");
    Ok(())
}
