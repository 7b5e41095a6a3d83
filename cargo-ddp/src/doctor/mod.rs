//! doctor
use crate::cli::DoctorArgs;
pub(crate) fn run(_args: &DoctorArgs) -> u8 {
    0
}
