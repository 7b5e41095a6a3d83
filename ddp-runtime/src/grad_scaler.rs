//! Loss scaling for mixed precision, by the rules of `torch.amp.GradScaler`.
use tch::{Tensor, nn};

use crate::bridge;
use crate::control::Operation;
use crate::error::{During, Error, Result};
use crate::session;

/// Keeps gradients of half-precision operations from vanishing: scales the loss up before the backward, and the gradients
/// down after it.
///
/// Small gradients round to zero in half precision. The loss, and with it every gradient, is multiplied by a large number;
/// where that was too large, gradients are infinite, the step is left out and the number halved. After a stretch of steps
/// without infinities it is doubled. The rules and defaults are those of [`torch.amp.GradScaler`]; it goes with
/// [`tch::autocast`], which chooses the precision of each operation.
///
/// On several ranks all leave a step out when one of them found an infinity, and so keep one scale. All ranks must take the
/// same calls.
///
/// ```no_run
/// # use ddp_runtime::GradScaler;
/// # use tch::nn::{self, Module, OptimizerConfig};
/// # fn train(net: nn::Linear, mut opt: nn::Optimizer, batches: Vec<(tch::Tensor, tch::Tensor)>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut scaler = GradScaler::new();
/// for (xs, ys) in batches {
///     let loss = tch::autocast(true, || net.forward(&xs).cross_entropy_for_logits(&ys));
///     opt.zero_grad();
///     scaler.scale(&loss).backward();
///     scaler.unscale(&opt)?; // only where gradients are read or clipped before the step
///     opt.clip_grad_norm(1.0);
///     scaler.step(&mut opt)?;
///     scaler.update()?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// bfloat16 has the range of single precision and needs no scaler.
///
/// [`torch.amp.GradScaler`]: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
#[derive(Clone, Debug)]
pub struct GradScaler {
    enabled: bool,
    state: GradScalerState,
    /// The optimizers seen since the last update.
    optimizers: Vec<Seen>,
}

/// What a [`GradScaler`] carries over a restart: PyTorch's `state_dict`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradScalerState {
    /// What the loss is multiplied by. PyTorch: `init_scale`, 65536 at first.
    pub scale: f32,
    /// What the scale is multiplied by after enough steps without infinities; above 1, 2 by default.
    pub growth_factor: f64,
    /// What the scale is multiplied by after a step with infinities; below 1, 0.5 by default.
    pub backoff_factor: f64,
    /// How many steps are enough; 2000 by default.
    pub growth_interval: u32,
    /// Steps without infinities since the scale last changed.
    pub growth_tracker: u32,
}

impl Default for GradScalerState {
    fn default() -> Self {
        Self {
            scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            growth_tracker: 0,
        }
    }
}

/// An optimizer as the scaler sees it. tch's is one; implement it for your own.
pub trait ScaledOptimizer {
    /// The parameters whose gradients the step reads.
    fn trainable_variables(&self) -> Vec<Tensor>;
    /// Takes the step.
    fn step(&mut self);
}

impl ScaledOptimizer for nn::Optimizer {
    fn trainable_variables(&self) -> Vec<Tensor> {
        nn::Optimizer::trainable_variables(self)
    }

    fn step(&mut self) {
        nn::Optimizer::step(self);
    }
}

/// How far an optimizer has come since the last update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unscaled,
    Stepped,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The identity of its first parameter, which stays where the optimizer itself is moved.
    id: usize,
    stage: Stage,
    found_inf: bool,
}

impl Default for GradScaler {
    fn default() -> Self {
        Self::new()
    }
}

impl GradScaler {
    /// A scaler with PyTorch's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self { enabled: true, state: GradScalerState::default(), optimizers: Vec::new() }
    }

    /// A scaler that goes on from `state`, or has other factors.
    ///
    /// # Errors
    /// [`Error::Option`] names the value that can be none of a scaler.
    pub fn with_state(state: GradScalerState) -> Result<Self> {
        state.check()?;
        Ok(Self { state, ..Self::new() })
    }

    /// A scaler that does nothing: `scale` returns the loss, `step` steps. For programs that switch mixed precision off by an
    /// argument.
    #[must_use]
    pub fn disabled() -> Self {
        Self { enabled: false, ..Self::new() }
    }

    /// Whether it scales at all.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// All there is to save. PyTorch: `state_dict`.
    #[must_use]
    pub fn state(&self) -> GradScalerState {
        self.state
    }

    /// What losses are multiplied by; 1 when disabled. PyTorch: `get_scale`.
    #[must_use]
    pub fn current_scale(&self) -> f32 {
        if self.enabled { self.state.scale } else { 1.0 }
    }

    /// The loss times the scale: call `backward` on it.
    ///
    /// The product is taken in single precision where the loss is a single number of half precision, which cannot hold it.
    pub fn scale(&self, loss: &Tensor) -> Tensor {
        if !self.enabled {
            return loss.shallow_clone();
        }
        loss * Tensor::from(self.state.scale).to_device(loss.device())
    }

    /// Divides the gradients of `optimizer` by the scale, in place, and looks for infinities. [`step`](Self::step) does it where it was
    /// not called; call it to clip or read gradients before that.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it was called for this optimizer since the last [`update`](Self::update), or its step was
    /// taken. [`Error::Torch`] for gradients of half precision. On several ranks as [`Scope::barrier`](crate::Scope::barrier).
    pub fn unscale(&mut self, optimizer: &impl ScaledOptimizer) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let parameters = optimizer.trainable_variables();
        let id = identity(&parameters)?;
        match self.seen(id).map(|seen| seen.stage) {
            Some(Stage::Unscaled) => Err(twice("unscale")),
            Some(Stage::Stepped) => Err(Error::unsupported(
                "unscale was called after the step of the same optimizer",
                "call it between the backward and the step",
            )),
            None => self.unscale_now(id, &parameters).map(drop),
        }
    }

    /// Takes the step of `optimizer`, unless there are infinities in its gradients, which are unscaled first where they are
    /// not yet. Tells whether it was taken.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when its step was taken since the last [`update`](Self::update), or no parameter has a gradient;
    /// else as [`unscale`](Self::unscale).
    pub fn step(&mut self, optimizer: &mut impl ScaledOptimizer) -> Result<bool> {
        if !self.enabled {
            optimizer.step();
            return Ok(true);
        }
        let parameters = optimizer.trainable_variables();
        let id = identity(&parameters)?;
        let found_inf = match self.seen(id) {
            Some(Seen { stage: Stage::Stepped, .. }) => return Err(twice("step")),
            Some(Seen { found_inf, .. }) => *found_inf,
            None => self.unscale_now(id, &parameters)?,
        };
        if !found_inf {
            optimizer.step();
        }
        if let Some(seen) = self.seen(id) {
            seen.stage = Stage::Stepped;
        }
        Ok(!found_inf)
    }

    /// Sets the scale of the next iteration, after the steps of all optimizers.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when no gradients were looked at since the last update.
    pub fn update(&mut self) -> Result<()> {
        if !self.enabled {
            return Ok(());
        }
        if self.optimizers.is_empty() {
            return Err(Error::unsupported(
                "update of a GradScaler that has looked at no gradients since the last one",
                "call `scaler.step(&mut opt)` in place of `opt.step()`, before the update",
            ));
        }
        let found_inf = self.optimizers.drain(..).any(|seen| seen.found_inf);
        self.state = self.state.after(found_inf);
        Ok(())
    }

    /// As [`update`](Self::update), with a scale of one's own.
    ///
    /// # Errors
    /// [`Error::Option`] when it is not a number above 0.
    pub fn update_to(&mut self, scale: f32) -> Result<()> {
        let state = GradScalerState { scale, ..self.state };
        state.check()?;
        self.optimizers.clear();
        self.state = state;
        Ok(())
    }

    /// `zero_grad`, backward of the scaled loss, [`step`](Self::step) and [`update`](Self::update): tch's `backward_step`. Tells
    /// whether the step was taken.
    ///
    /// # Errors
    /// As those.
    pub fn backward_step(&mut self, optimizer: &mut nn::Optimizer, loss: &Tensor) -> Result<bool> {
        optimizer.zero_grad();
        self.scale(loss).f_backward().during("the backward of a scaled loss")?;
        let stepped = self.step(optimizer)?;
        self.update()?;
        Ok(stepped)
    }

    fn seen(&mut self, id: usize) -> Option<&mut Seen> {
        self.optimizers.iter_mut().find(|seen| seen.id == id)
    }

    /// Whether there were infinities on any rank.
    fn unscale_now(&mut self, id: usize, parameters: &[Tensor]) -> Result<bool> {
        // As PyTorch takes it: the reciprocal in double precision, then rounded.
        let inverse = (1.0 / f64::from(self.state.scale)) as f32;
        let unscaled =
            bridge::unscale_gradients(parameters, inverse).during("unscaling gradients")?;
        if unscaled.gradients == 0 {
            return Err(NO_GRADIENTS.error());
        }
        let found_inf = on_any_rank(unscaled.found_inf)?;
        self.optimizers.push(Seen { id, stage: Stage::Unscaled, found_inf });
        Ok(found_inf)
    }
}

/// What there is to say about an optimizer, and the cure.
struct Refusal(&'static str, &'static str);

const NO_GRADIENTS: Refusal = Refusal(
    "a GradScaler with an optimizer none of whose parameters has a gradient",
    "call backward on the scaled loss first",
);

impl Refusal {
    fn error(&self) -> Error {
        Error::unsupported(self.0, self.1)
    }
}

fn twice(what: &str) -> Error {
    Error::unsupported(
        format!(
            "{what} was called twice for one optimizer since the last update of its GradScaler"
        ),
        "call `scaler.update()` at the end of each iteration, after the steps of all optimizers",
    )
}

/// What tells an optimizer apart.
fn identity(parameters: &[Tensor]) -> Result<usize> {
    let first = parameters.first().ok_or_else(|| NO_GRADIENTS.error())?;
    bridge::identity(first).during("looking at an optimizer")
}

/// One answer for all ranks.
fn on_any_rank(found: bool) -> Result<bool> {
    match session::current() {
        None => Ok(found),
        Some(session) => Ok(session.exchange(Operation::Vote, i64::from(found))?.contains(&1)),
    }
}

impl GradScalerState {
    /// The state after an iteration: PyTorch's `_amp_update_scale_`.
    fn after(self, found_inf: bool) -> Self {
        let scaled = |factor: f64| (f64::from(self.scale) * factor) as f32;
        if found_inf {
            return Self { scale: scaled(self.backoff_factor), growth_tracker: 0, ..self };
        }
        let successes = self.growth_tracker + 1;
        if successes < self.growth_interval {
            return Self { growth_tracker: successes, ..self };
        }
        let grown = scaled(self.growth_factor);
        let scale = if grown.is_finite() { grown } else { self.scale };
        Self { scale, growth_tracker: 0, ..self }
    }

    fn check(&self) -> Result<()> {
        let wrong = |name, value: f64, expected| {
            Err(Error::Option { name, value: value.to_string(), expected })
        };
        let Self { scale, growth_factor, backoff_factor, growth_interval, .. } = *self;
        if !(scale > 0.0 && scale.is_finite()) {
            return wrong("scale", scale.into(), "write a number above 0");
        }
        if !(growth_factor > 1.0 && growth_factor.is_finite()) {
            return wrong("growth_factor", growth_factor, "write a number above 1");
        }
        if !(backoff_factor > 0.0 && backoff_factor < 1.0) {
            return wrong("backoff_factor", backoff_factor, "write a number between 0 and 1");
        }
        if growth_interval == 0 {
            return wrong("growth_interval", 0.0, "write a number of steps above 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::nn::OptimizerConfig;
    use tch::{Device, Kind};

    fn optimizer() -> (nn::VarStore, Tensor, nn::Optimizer) {
        let vs = nn::VarStore::new(Device::Cpu);
        let weight = vs.root().ones("weight", &[2]);
        let opt = nn::Sgd::default().build(&vs, 1.0).unwrap();
        (vs, weight, opt)
    }

    #[test]
    fn calls_out_of_order_are_named() {
        let (_vs, weight, mut opt) = optimizer();
        let mut scaler = GradScaler::new();
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(text(scaler.update()).contains("no gradients"));
        assert!(text(scaler.unscale(&opt)).contains("none of whose parameters"));
        scaler.scale(&weight.sum(Kind::Float)).backward();
        scaler.unscale(&opt).unwrap();
        assert!(text(scaler.unscale(&opt)).starts_with("unscale was called twice"));
        // Moving the optimizer does not make it another one.
        let mut opt = Box::new(std::mem::replace(&mut opt, optimizer().2));
        assert!(scaler.step(&mut *opt).unwrap());
        assert_eq!(Vec::<f64>::try_from(&weight).unwrap(), [0.0, 0.0]);
        assert!(text(scaler.step(&mut *opt).map(drop)).starts_with("step was called twice"));
        assert!(text(scaler.unscale(&*opt)).contains("after the step"));
        scaler.update().unwrap();
        scaler.unscale(&*opt).unwrap();
    }

    #[test]
    fn a_disabled_scaler_steps() {
        let (_vs, weight, mut opt) = optimizer();
        let mut scaler = GradScaler::disabled();
        assert!(scaler.backward_step(&mut opt, &weight.sum(Kind::Float)).unwrap());
        assert_eq!(
            (scaler.current_scale(), Vec::<f64>::try_from(&weight).unwrap()),
            (1.0, vec![0.0; 2])
        );
    }

    #[test]
    fn a_loss_of_half_precision_is_scaled_beyond_its_range() {
        let loss = Tensor::from(2.0).to_kind(Kind::Half);
        assert_eq!(f64::try_from(GradScaler::new().scale(&loss)).unwrap(), 131_072.0);
    }

    #[test]
    fn gradients_of_half_precision_are_refused() {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let weight = vs.root().ones("weight", &[2]);
        vs.half();
        let opt = nn::Sgd::default().build(&vs, 1.0).unwrap();
        weight.sum(Kind::Half).backward();
        let error = GradScaler::new().unscale(&opt).unwrap_err().to_string();
        assert!(error.contains("half precision") && !error.contains("Exception raised"), "{error}");
    }

    #[test]
    fn states_that_cannot_be_are_named() {
        let good = GradScalerState::default();
        let cases = [
            ("scale", GradScalerState { scale: f32::INFINITY, ..good }),
            ("growth_factor", GradScalerState { growth_factor: 1.0, ..good }),
            ("backoff_factor", GradScalerState { backoff_factor: 1.0, ..good }),
            ("growth_interval", GradScalerState { growth_interval: 0, ..good }),
        ];
        for (name, state) in cases {
            let error = GradScaler::with_state(state).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
