//! The states of libtorch's default generators.
use std::ptr;

use tch::Device;

use super::{Result, check, device_number, sys, take_bytes};

/// The state of the default generator of `device`.
pub(crate) fn generator_state(device: Device) -> Result<Vec<u8>> {
    let index = device_number(device)?;
    let mut state: Vec<u8> = Vec::new();
    let context = ptr::from_mut(&mut state).cast();
    // SAFETY: `take_bytes` is called during the call only, with `context`, which is a vector.
    check(unsafe { sys::ddp_generator_state(index, take_bytes, context) })?;
    Ok(state)
}

/// Replaces the state of the default generator of `device`.
pub(crate) fn set_generator_state(device: Device, state: &[u8]) -> Result<()> {
    let index = device_number(device)?;
    // SAFETY: the bytes are copied during the call.
    check(unsafe { sys::ddp_generator_set_state(index, state.as_ptr(), state.len()) })
}

#[cfg(test)]
mod tests {
    use tch::{Tensor, kind};

    use super::*;

    #[test]
    fn a_state_put_back_draws_the_same_numbers() {
        let state = generator_state(Device::Cpu).unwrap();
        let put_back = || {
            let _moved = Tensor::rand([100], kind::FLOAT_CPU);
            set_generator_state(Device::Cpu, &state).unwrap();
            generator_state(Device::Cpu).unwrap() == state
        };
        // Other tests draw from the same generator, and may come between: not a hundred times.
        assert!((0..100).any(|_| put_back()));
        assert!(set_generator_state(Device::Cpu, &state[1..]).is_err());
        assert!(set_generator_state(Device::Mps, &state).is_err());
    }
}
