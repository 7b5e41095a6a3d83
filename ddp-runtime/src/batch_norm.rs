//! Synchronised batch normalisation: which layers, and what their ranks combine.
//!
//! While a scope wants it, a kernel in the bridge shows each training call of `batch_norm` to the session: tch's
//! [`BatchNorm`](tch::nn::BatchNorm) in one, two and three dimensions, and `Tensor::batch_norm` itself. With
//! [`Options::sync_batch_norm`](crate::Options) all of them are synchronised, except in stores given to [`local_batch_norm`];
//! without it, those of stores given to [`sync_batch_norm`]. Evaluation, `instance_norm` and all else are libtorch's own.
//!
//! Each forward and backward of a layer is one collective, announced on the control plane like any other: a backward settles its
//! headers before, so that all ranks send the same messages in the same order. On the CPU the values travel there too
//! (`group/in_pass.rs`), where no bucket is under way. On GPUs libtorch's fused kernels compute, and what they exchange
//! stays on the device: it goes by the data plane, among the buckets. See Note [Buckets and layers] (`sync/launch.rs`).
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tch::Tensor;
use tch::nn::{VarStore, Variables};

use crate::bridge::BatchNormObserver;
use crate::control::Operation;
use crate::error::{Error, Result};
use crate::scope::end_process;
use crate::session::{self, Session};
use crate::sync::identity;

/// Takes mean and variance of this store's `BatchNorm` layers over all ranks from now on: what the option
/// `sync_batch_norm` does for all stores, for one.
///
/// The layers compute what one process computes on the joined batch: outputs, running statistics and gradients, whatever the
/// sizes of the ranks' parts, as `torch.nn.SyncBatchNorm` does. The model is not changed. All ranks must call it at the same
/// place. With one rank, or outside of a scope, it does nothing. When the kernel cannot be installed, the process ends.
pub fn sync_batch_norm(store: &VarStore) {
    choose(store, Choice::Synchronised);
}

/// Leaves this store's `BatchNorm` layers to each rank from now on, where the option `sync_batch_norm` is on.
///
/// For a layer whose statistics belong to the rank, or that only some ranks run. As [`sync_batch_norm`] otherwise.
pub fn local_batch_norm(store: &VarStore) {
    choose(store, Choice::Local);
}

fn choose(store: &VarStore, choice: Choice) {
    if let Some(session) = session::current()
        && let Err(error) = session.choose_batch_norm(store, choice)
    {
        end_process(&error);
    }
}

/// What is done with the layers of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Statistics over all ranks.
    Synchronised,
    /// Statistics of each rank.
    Local,
}

/// A store that the session knows.
struct Known {
    variables: Weak<Mutex<Variables>>,
    choice: Option<Choice>,
}

/// A layer that was met.
struct Layer {
    name: String,
    /// Its store's position in the list.
    store: usize,
    /// Kept, so that no other tensor can have the same identity.
    _running_mean: Tensor,
}

/// Number of all layers that no known store has.
const UNKNOWN: u64 = 1;
/// Number of the first other layer.
const FIRST: u64 = 2;

/// Which layers are synchronised.
pub(crate) struct Layers {
    /// What is done where no store says otherwise.
    default: Choice,
    stores: Vec<Known>,
    by_identity: HashMap<usize, u64>,
    layers: Vec<Layer>,
    /// Variables of all stores when they were last looked through.
    looked_through: usize,
}

impl Layers {
    pub(crate) fn new(default: Choice) -> Self {
        let by_identity = HashMap::new();
        Self { default, stores: Vec::new(), by_identity, layers: Vec::new(), looked_through: 0 }
    }

    /// Notes a store, without saying anything about its layers.
    pub(crate) fn know(&mut self, store: &VarStore) -> usize {
        let variables = Arc::downgrade(&store.variables_);
        let same = |known: &Known| known.variables.ptr_eq(&variables);
        self.stores.iter().position(same).unwrap_or_else(|| {
            self.stores.push(Known { variables, choice: None });
            // Another one may be gone, and have had as many variables.
            self.looked_through = 0;
            self.stores.len() - 1
        })
    }

    pub(crate) fn choose(&mut self, store: &VarStore, choice: Choice) {
        let position = self.know(store);
        self.stores[position].choice = Some(choice);
    }

    /// The number of the layer with these running means, where it is synchronised.
    fn select(&mut self, running_mean: Option<usize>) -> Option<u64> {
        let number = running_mean.and_then(|identity| self.number(identity)).unwrap_or(UNKNOWN);
        let own = self.layer(number).and_then(|layer| self.stores[layer.store].choice);
        (own.unwrap_or(self.default) == Choice::Synchronised).then_some(number)
    }

    fn number(&mut self, identity: usize) -> Option<u64> {
        if let Some(&number) = self.by_identity.get(&identity) {
            return Some(number);
        }
        let variables = |store: &Known| {
            let variables = store.variables.upgrade()?;
            let variables = variables.lock().unwrap_or_else(PoisonError::into_inner);
            Some(variables.named_variables.len())
        };
        let count = self.stores.iter().filter_map(variables).sum();
        if count != self.looked_through {
            self.look_through();
            self.looked_through = count;
        }
        self.by_identity.get(&identity).copied()
    }

    /// Numbers the buffers of all stores: each may be the running means of a layer.
    fn look_through(&mut self) {
        for (position, store) in self.stores.iter().enumerate() {
            let Some(variables) = store.variables.upgrade() else { continue };
            let variables = variables.lock().unwrap_or_else(PoisonError::into_inner);
            for (name, tensor) in &variables.named_variables {
                let Ok(identity) = identity(tensor) else { continue };
                self.by_identity.entry(identity).or_insert_with(|| {
                    self.layers.push(Layer {
                        name: layer_name(name),
                        store: position,
                        _running_mean: tensor.shallow_clone(),
                    });
                    FIRST + self.layers.len() as u64 - 1
                });
            }
        }
    }

    fn layer(&self, number: u64) -> Option<&Layer> {
        self.layers.get(usize::try_from(number.checked_sub(FIRST)?).ok()?)
    }

    /// What messages call a layer. The same on all ranks for the same layer: numbers are not, as they come from a hash map.
    fn describe(&self, number: u64, channels: usize) -> String {
        match self.layer(number) {
            Some(layer) => format!("`{}` ({channels} channels)", layer.name),
            None => format!("a BatchNorm outside any known store ({channels} channels)"),
        }
    }
}

/// "block.bn" for "block.bn.running_mean"
fn layer_name(variable: &str) -> String {
    let layer = variable.strip_suffix("running_mean").map(|layer| layer.trim_end_matches('.'));
    layer.filter(|layer| !layer.is_empty()).unwrap_or(variable).to_owned()
}

impl BatchNormObserver for Session {
    fn select(&self, running_mean: Option<usize>) -> Option<u64> {
        self.batch_norm().select(running_mean)
    }

    fn forward(
        &self,
        layer: u64,
        count: &mut f64,
        means: &mut [f64],
        variances: &mut [f64],
    ) -> std::result::Result<(), String> {
        let name = self.batch_norm().describe(layer, means.len());
        let own = [std::slice::from_ref(count), means, variances].concat();
        let combined = self
            .exchange_in_pass(Operation::NormForward, &name, &own)
            .and_then(|all| self.keep(combine(&name, &all)));
        let (total, mean, variance) = combined.map_err(|error| error.to_string())?;
        *count = total;
        means.copy_from_slice(&mean);
        variances.copy_from_slice(&variance);
        Ok(())
    }

    fn backward(
        &self,
        layer: u64,
        sums: &mut [f64],
        products: &mut [f64],
    ) -> std::result::Result<(), String> {
        let name = self.batch_norm().describe(layer, sums.len());
        let own = [&*sums, &*products].concat();
        let all = self
            .exchange_in_pass(Operation::NormBackward, &name, &own)
            .map_err(|error| error.to_string())?;
        let total = |index: usize| all.iter().map(|values| values[index]).sum();
        let channels = sums.len();
        for channel in 0..channels {
            sums[channel] = total(channel);
            products[channel] = total(channels + channel);
        }
        Ok(())
    }

    fn gather(
        &self,
        layer: u64,
        channels: usize,
        count: i64,
        own: &Tensor,
    ) -> std::result::Result<Tensor, String> {
        let name = self.batch_norm().describe(layer, channels);
        self.gather_in_pass(&name, count, own).map_err(|error| error.to_string())
    }

    fn add_up(
        &self,
        layer: u64,
        channels: usize,
        sums: &Tensor,
    ) -> std::result::Result<(), String> {
        let name = self.batch_norm().describe(layer, channels);
        self.add_up_in_pass(&name, sums).map_err(|error| error.to_string())
    }
}

/// An error for a single value a channel over all ranks, which has no deviation; `layer` is its name.
pub(crate) fn check_total(layer: &str, total: f64) -> Result<()> {
    if total > 1.0 {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("the training of {layer} got {total} value per channel from all ranks together"),
        "give it a batch of more than one sample",
    ))
}

/// Count, means and biased variances of all ranks' values together, from those of each: (count, mean.., variance..).
///
/// Deviations are combined as by Chan, Golub and LeVeque (1979), in the order of the ranks: all get the same bits.
///
/// # Errors
/// [`Error::Unsupported`] for a single value a channel, which has no deviation; `layer` is its name.
fn combine(layer: &str, ranks: &[Vec<f64>]) -> Result<(f64, Vec<f64>, Vec<f64>)> {
    let total: f64 = ranks.iter().map(|values| values[0]).sum();
    check_total(layer, total)?;
    let channels = ranks[0].len() / 2;
    let (mut means, mut variances) = (vec![0.0; channels], vec![0.0; channels]);
    for channel in 0..channels {
        let (mut count, mut mean, mut deviations) = (0.0, 0.0, 0.0);
        for values in ranks.iter().filter(|values| values[0] > 0.0) {
            let (n, own) = (values[0], values[1 + channel]);
            let (joint, apart) = (count + n, own - mean);
            deviations += values[1 + channels + channel] * n + apart * apart * count * n / joint;
            mean += apart * n / joint;
            count = joint;
        }
        means[channel] = mean;
        variances[channel] = deviations / total;
    }
    Ok((total, means, variances))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tch::{Device, nn};

    use super::*;

    fn number(layers: &mut Layers, tensor: &Tensor) -> Option<u64> {
        layers.select(Some(identity(tensor).unwrap()))
    }

    #[test]
    fn a_store_may_differ_from_the_scope() {
        let (here, there) = (nn::VarStore::new(Device::Cpu), nn::VarStore::new(Device::Cpu));
        let norm = |store: &nn::VarStore| {
            nn::batch_norm1d(store.root() / "bn", 3, Default::default()).running_mean
        };
        let (a, b) = (norm(&here), norm(&there));
        for (default, choice) in
            [(Choice::Synchronised, Choice::Local), (Choice::Local, Choice::Synchronised)]
        {
            let mut layers = Layers::new(default);
            layers.know(&here);
            layers.choose(&there, choice);
            assert_eq!(number(&mut layers, &a).is_some(), default == Choice::Synchronised);
            assert_eq!(number(&mut layers, &b).is_some(), choice == Choice::Synchronised);
            // Neither known nor with running means: as the scope says.
            let stranger = Tensor::zeros([3], (tch::Kind::Float, Device::Cpu));
            assert_eq!(number(&mut layers, &stranger).is_some(), default == Choice::Synchronised);
            assert_eq!(layers.select(None).is_some(), default == Choice::Synchronised);
        }
    }

    #[test]
    fn a_layer_that_comes_later_is_found_and_named() {
        let store = nn::VarStore::new(Device::Cpu);
        let norm = |name: &str| nn::batch_norm1d(store.root() / name, 3, Default::default());
        let first = norm("first");
        let mut layers = Layers::new(Choice::Local);
        layers.choose(&store, Choice::Synchronised);
        let before = number(&mut layers, &first.running_mean).unwrap();
        let late = norm("late");
        let after = number(&mut layers, &late.running_mean).unwrap();
        assert_eq!(layers.describe(after, 3), "`late` (3 channels)");
        assert_eq!(number(&mut layers, &first.running_mean), Some(before));
        layers.choose(&store, Choice::Local);
        assert_eq!(number(&mut layers, &late.running_mean), None);
    }

    #[test]
    fn a_layer_in_place_of_one_that_is_gone_is_found() {
        let mut layers = Layers::new(Choice::Local);
        for _ in 0..2 {
            let store = nn::VarStore::new(Device::Cpu);
            let norm = nn::batch_norm1d(store.root() / "bn", 3, Default::default());
            layers.choose(&store, Choice::Synchronised);
            assert!(number(&mut layers, &norm.running_mean).is_some());
        }
    }

    #[test]
    fn a_single_value_over_all_ranks_is_refused_by_name() {
        let error = combine("`bn` (1 channels)", &[vec![1.0, 2.0, 0.0], vec![0.0, 0.0, 0.0]]);
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("the training of `bn` (1 channels) got 1 value"), "{text}");
    }

    proptest! {
        #[test]
        fn combined_statistics_are_those_of_all_values(
            parts in proptest::collection::vec(proptest::collection::vec(-10.0_f64..10.0, 0..9), 1..5),
            offset in prop_oneof![Just(0.0), Just(1e6)],
        ) {
            let statistics = |values: &[f64]| {
                let n = values.len() as f64;
                let mean = values.iter().sum::<f64>() / n;
                let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
                (n, mean, variance)
            };
            let parts: Vec<Vec<f64>> = parts
                .iter()
                .map(|part| part.iter().map(|value| value + offset).collect())
                .collect();
            let joined = parts.concat();
            prop_assume!(joined.len() > 1);
            let words: Vec<Vec<f64>> = parts
                .iter()
                .map(|part| match statistics(part) {
                    (0.0, ..) => vec![0.0; 3],
                    (n, mean, variance) => vec![n, mean, variance],
                })
                .collect();
            let (count, means, variances) = combine("`bn`", &words).unwrap();
            let (n, mean, variance) = statistics(&joined);
            prop_assert_eq!(count, n);
            prop_assert!((means[0] - mean).abs() <= 1e-12 * (1.0 + mean.abs()));
            prop_assert!((variances[0] - variance).abs() <= 1e-9 * (1.0 + variance));
        }
    }
}
