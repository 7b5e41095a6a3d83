//! `torch::optim::Optimizer`, behind tch's.
//!
//! # Note [Where tch keeps the optimizer]
//!
//! `tch::nn::Optimizer` has no `state_dict` and gives nobody its C++ object. It consists of three words: that object's address,
//! the variables of its store, and their number. Rust does not promise in which order, but it is the same for all values
//! of the type in one build. So the order is found once, on an optimizer of our own whose other two words are known, and the
//! word that remains is checked to be an optimizer with that one's variables. If any of this does not hold (a tch that
//! stores it differently), saving and loading optimizers is an error, and never a guess.
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use tch::Device;
use tch::nn::{self, Optimizer, OptimizerConfig, VarStore};

use super::{BridgeError, Result, check, identity, sys, take_bytes};

const WORDS: usize = 3;
type Words = [*mut c_void; WORDS];

/// A parameter that an optimizer moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParameterOf {
    /// The number of its group.
    pub(crate) group: usize,
    /// What tells its tensor apart, as `bridge::identity` does.
    pub(crate) identity: usize,
    /// Its size.
    pub(crate) size: Vec<i64>,
}

/// The C++ object of an optimizer, as long as that is borrowed.
pub(crate) struct OptimizerHandle<'a> {
    raw: *mut c_void,
    _borrowed: &'a Optimizer,
}

impl<'a> OptimizerHandle<'a> {
    /// The object behind `optimizer`.
    pub(crate) fn of(optimizer: &'a Optimizer) -> Result<Self> {
        static PLACE: OnceLock<Result<usize>> = OnceLock::new();
        let place = PLACE.get_or_init(find_place).clone()?;
        let raw = words(optimizer)?[place];
        Ok(Self { raw, _borrowed: optimizer })
    }

    /// The name of its class: `Adam`, `AdamW`, `SGD` or `RMSprop`.
    pub(crate) fn name(&self) -> Result<String> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: `raw` is an optimizer that lives as long as `self`; the name is a constant.
        check(unsafe { sys::ddp_optimizer_name(self.raw, &mut name) })?;
        // SAFETY: as above; the text ends in NUL.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// The parameters it moves, group after group.
    pub(crate) fn parameters(&self) -> Result<Vec<ParameterOf>> {
        unsafe extern "C" fn take(
            context: *mut c_void,
            group: usize,
            identity: usize,
            sizes: *const i64,
            dims: usize,
        ) {
            // SAFETY: `context` is the vector below, alive and unaliased during the call; `sizes` spans `dims` numbers.
            unsafe {
                let size = match dims {
                    0 => Vec::new(),
                    _ => std::slice::from_raw_parts(sizes, dims).to_vec(),
                };
                (*context.cast::<Vec<ParameterOf>>()).push(ParameterOf { group, identity, size });
            }
        }
        let mut found: Vec<ParameterOf> = Vec::new();
        let context = ptr::from_mut(&mut found).cast();
        // SAFETY: `take` is called during the call only, with `context`.
        check(unsafe { sys::ddp_optimizer_parameters(self.raw, take, context) })?;
        Ok(found)
    }

    /// Options and state, in libtorch's archive format.
    pub(crate) fn save(&self) -> Result<Vec<u8>> {
        let mut archive: Vec<u8> = Vec::new();
        let context = ptr::from_mut(&mut archive).cast();
        // SAFETY: `take_bytes` is called during the call only, with `context`, which is a vector.
        check(unsafe { sys::ddp_optimizer_save(self.raw, take_bytes, context) })?;
        Ok(archive)
    }
}

/// Replaces options and state by those of an archive that [`OptimizerHandle::save`] made of an optimizer of the same class,
/// with the same parameters.
pub(crate) fn load_optimizer(optimizer: &mut Optimizer, archive: &[u8]) -> Result<()> {
    let handle = OptimizerHandle::of(optimizer)?;
    // SAFETY: the object lives, and is borrowed exclusively; the bytes are read during the call.
    check(unsafe { sys::ddp_optimizer_load(handle.raw, archive.as_ptr(), archive.len()) })
}

fn words(optimizer: &Optimizer) -> Result<Words> {
    if size_of::<Optimizer>() != size_of::<Words>() {
        return Err(unknown());
    }
    // SAFETY: the type has the size of three words, and its parts (see the note) leave no byte between them. A number read as
    // an address is not followed.
    Ok(unsafe { ptr::read(ptr::from_ref(optimizer).cast::<Words>()) })
}

fn unknown() -> BridgeError {
    BridgeError::new("this version of tch keeps its optimizers in a way that is not known")
}

/// Which of the three words is the object's address.
fn find_place() -> Result<usize> {
    const VARIABLES: usize = 3;
    let store = VarStore::new(Device::Cpu);
    for _ in 0..VARIABLES {
        let _ = store.root().zeros("probe", &[1]);
    }
    let optimizer = nn::Sgd::default()
        .build(&store, 0.0)
        .map_err(|error| BridgeError::new(error.to_string()))?;
    let shared = Arc::clone(&store.variables_);
    // SAFETY: an Arc to a sized value is one pointer; it is compared and not followed.
    let shared = unsafe { ptr::read(ptr::from_ref(&shared).cast::<*mut c_void>()) };
    let words = words(&optimizer)?;
    let is_known = |word: &*mut c_void| *word == shared || word.addr() == VARIABLES;
    let mut unknown_words = (0..WORDS).filter(|place| !is_known(&words[*place]));
    let (Some(place), None) = (unknown_words.next(), unknown_words.next()) else {
        return Err(unknown());
    };
    if words[place].is_null() || !words[place].addr().is_multiple_of(align_of::<usize>()) {
        return Err(unknown());
    }
    let handle = OptimizerHandle { raw: words[place], _borrowed: &optimizer };
    let expected: Result<Vec<usize>> = store.trainable_variables().iter().map(identity).collect();
    let found: Vec<usize> = handle.parameters()?.iter().map(|one| one.identity).collect();
    if found == expected? && handle.name()? == "SGD" { Ok(place) } else { Err(unknown()) }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;

    fn store() -> (VarStore, Tensor) {
        let store = VarStore::new(Device::Cpu);
        let weight = store.root().zeros("weight", &[3, 2]);
        let mut second = store.root();
        second = second.set_group(1);
        let _bias = second.zeros("bias", &[2]);
        (store, weight)
    }

    fn steps(optimizer: &mut Optimizer, store: &VarStore, count: usize) {
        for step in 0..count {
            let loss: Tensor = store
                .trainable_variables()
                .iter()
                .map(|one| (one * (step as f64 + 1.0) - 2.0).square().sum(Kind::Float))
                .sum();
            optimizer.backward_step(&loss);
        }
    }

    fn copies(store: &VarStore) -> Vec<Tensor> {
        store.trainable_variables().iter().map(|one| one.detach().copy()).collect()
    }

    fn is_continued<C: OptimizerConfig + Copy>(config: C, name: &str) {
        let (one, _) = store();
        let mut straight = config.build(&one, 0.1).unwrap();
        straight.set_lr_group(1, 0.03);
        steps(&mut straight, &one, 3);
        let handle = OptimizerHandle::of(&straight).unwrap();
        assert_eq!(handle.name().unwrap(), name);
        let sizes: Vec<_> =
            handle.parameters().unwrap().into_iter().map(|one| (one.group, one.size)).collect();
        assert_eq!(sizes, [(0, vec![3, 2]), (1, vec![2])]);
        let archive = handle.save().unwrap();
        let weights = copies(&one);

        let (other, _) = store();
        // Another learning rate: that of the archive counts.
        let mut resumed = config.build(&other, 7.0).unwrap();
        steps(&mut resumed, &other, 1);
        load_optimizer(&mut resumed, &archive).unwrap();
        tch::no_grad(|| {
            for (mut to, from) in other.trainable_variables().into_iter().zip(&weights) {
                to.copy_(from);
            }
        });
        steps(&mut straight, &one, 4);
        steps(&mut resumed, &other, 4);
        assert_eq!(copies(&one), copies(&other), "{name}");
        let changed = copies(&one).iter().zip(&weights).all(|(now, then)| now != then);
        assert!(changed, "nothing was trained");
    }

    #[test]
    fn a_saved_state_is_continued_bit_for_bit() {
        is_continued(nn::Sgd::default(), "SGD");
        is_continued(nn::Sgd { momentum: 0.9, nesterov: true, ..Default::default() }, "SGD");
        is_continued(nn::Adam::default(), "Adam");
        is_continued(nn::Adam::default().amsgrad(true), "Adam");
        is_continued(nn::AdamW::default(), "AdamW");
        is_continued(
            nn::RmsProp { centered: true, momentum: 0.5, ..Default::default() },
            "RMSprop",
        );
    }

    #[test]
    fn an_archive_of_another_class_or_none_is_an_error() {
        let (store, _) = store();
        let mut adam = nn::Adam::default().build(&store, 0.1).unwrap();
        steps(&mut adam, &store, 1);
        let archive = OptimizerHandle::of(&adam).unwrap().save().unwrap();
        let mut sgd = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&store, 0.1).unwrap();
        assert!(load_optimizer(&mut sgd, &archive).is_err());
        assert!(load_optimizer(&mut adam, b"no archive").is_err());
    }
}
