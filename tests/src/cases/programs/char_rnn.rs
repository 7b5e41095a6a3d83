//! `char-rnn/main.rs`: an LSTM over windows of a text, with samples drawn after each epoch. One change: the original writes its
//! batch size into a view, which a part of a batch does not have; `-1` says the same. (Its zero state is spelled out, as tch's is
//! f32.)
use tch::nn::{self, LSTM, LSTMState, Linear, Module, OptimizerConfig, RNN};

use super::*;

const HIDDEN_SIZE: i64 = 12;
const SEQ_LEN: i64 = 10;
const BATCH_SIZE: i64 = 16;
const SAMPLING_LEN: i64 = 20;

fn zero_state(batch: i64) -> LSTMState {
    let zeros = || Tensor::zeros([1, batch, HIDDEN_SIZE], (Kind::Double, Device::Cpu));
    LSTMState((zeros(), zeros()))
}

/// Generates some sample string using the LSTM + Linear model.
fn sample(data: &TextData, lstm: &LSTM, linear: &Linear, device: Device) -> String {
    let labels = data.labels();
    let mut state = zero_state(1);
    let mut last_label = 0i64;
    let mut result = String::new();
    for _index in 0..SAMPLING_LEN {
        let input = Tensor::zeros([1, labels], (Kind::Double, device));
        let _ = input.narrow(1, last_label, 1).fill_(1.0);
        state = lstm.step(&input, &state);
        let sampled_y = linear
            .forward(&state.h())
            .squeeze_dim(0)
            .softmax(-1, Kind::Double)
            .multinomial(1, false);
        last_label = sampled_y.int64_value(&[0]);
        result.push(data.label_to_char(last_label))
    }
    result
}

program! {
    [batch = "global"]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let device = Device::cuda_if_available();
        let mut vs = nn::VarStore::new(device);
        let data = &task.text;
        let labels = data.labels();
        println!("Dataset loaded, {labels} labels.");
        let lstm = nn::lstm(vs.root(), labels, HIDDEN_SIZE, Default::default());
        let linear = nn::linear(vs.root(), HIDDEN_SIZE, labels, Default::default());
        vs.double();
        let mut opt = nn::Adam::default().build(&vs, 0.01)?;
        for epoch in 1..(1 + task.epochs) {
            let mut sum_loss = 0.;
            let mut cnt_loss = 0.;
            for batch in data.iter_shuffle(SEQ_LEN + 1, BATCH_SIZE) {
                let xs_onehot = batch.narrow(1, 0, SEQ_LEN).onehot(labels).to_kind(Kind::Double);
                let ys = batch.narrow(1, 1, SEQ_LEN).to_kind(Kind::Int64);
                let state = zero_state(batch.size()[0]);
                let (lstm_out, _) = lstm.seq_init(&xs_onehot.to_device(device), &state);
                let logits = linear.forward(&lstm_out);
                let loss =
                    cross_entropy(&logits.view([-1, labels]), &ys.to_device(device).view([-1]));
                opt.backward_step_clip(&loss, 0.5);
                sum_loss += f64::try_from(loss)?;
                cnt_loss += 1.0;
            }
            println!("Epoch: {}   loss: {:5.3}", epoch, sum_loss / cnt_loss);
            println!("Sample: {}", sample(data, &lstm, &linear, device));
        }
        Ok(vs.trainable_variables())
    }
}
