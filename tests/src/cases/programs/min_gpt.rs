//! `min-gpt/main.rs`: a transformer with parameter groups, clipping, samples and saving inside the loop. One change, as in
//! `char_rnn`: `-1` for the batch size in a view. To follow, without its dropout.
use tch::IndexOp;
use tch::nn::{self, ModuleT, OptimizerConfig};

use super::*;

const BLOCK_SIZE: i64 = 8;
const BATCH_SIZE: i64 = 16;
const SAMPLING_LEN: i64 = 12;

#[derive(Debug, Copy, Clone)]
struct Config {
    vocab_size: i64,
    n_embd: i64,
    n_head: i64,
    n_layer: i64,
    block_size: i64,
    dropout: f64,
}

// Weight decay only applies to the weight matrixes in the linear layers
const NO_WEIGHT_DECAY_GROUP: usize = 0;
const WEIGHT_DECAY_GROUP: usize = 1;

/// A linear layer whose weights and biases lie in different groups.
#[derive(Debug)]
struct Linear {
    ws: Tensor,
    bs: Tensor,
}

impl nn::Module for Linear {
    fn forward(&self, xs: &Tensor) -> Tensor {
        xs.matmul(&self.ws.tr()) + &self.bs
    }
}

fn linear(vs: nn::Path, in_dim: i64, out_dim: i64, bias: bool) -> Linear {
    let wd = vs.set_group(WEIGHT_DECAY_GROUP);
    let no_wd = vs.set_group(NO_WEIGHT_DECAY_GROUP);
    let ws = wd.randn("weight", &[out_dim, in_dim], 0.0, 0.02);
    let bs = if bias {
        no_wd.zeros("bias", &[out_dim])
    } else {
        no_wd.zeros_no_train("bias", &[out_dim])
    };
    Linear { ws, bs }
}

fn causal_self_attention(p: &nn::Path, cfg: Config) -> impl ModuleT + use<> {
    let [key, query, value, proj] = ["key", "query", "value", "proj"]
        .map(|name| linear(p / name, cfg.n_embd, cfg.n_embd, true));
    let mask = Tensor::ones([cfg.block_size, cfg.block_size], (Kind::Float, p.device())).tril(0);
    let mask = mask.view([1, 1, cfg.block_size, cfg.block_size]);
    nn::func_t(move |xs, train| {
        let (sz_b, sz_t, sz_c) = xs.size3().expect("three dimensions");
        let sizes = [sz_b, sz_t, cfg.n_head, sz_c / cfg.n_head];
        let k = xs.apply(&key).view(sizes).transpose(1, 2);
        let q = xs.apply(&query).view(sizes).transpose(1, 2);
        let v = xs.apply(&value).view(sizes).transpose(1, 2);
        let att = q.matmul(&k.transpose(-2, -1)) * (1.0 / f64::sqrt(sizes[3] as f64));
        let att = att.masked_fill(&mask.i((.., .., ..sz_t, ..sz_t)).eq(0.), f64::NEG_INFINITY);
        let att = att.softmax(-1, xs.kind()).dropout(cfg.dropout, train);
        let ys = att.matmul(&v).transpose(1, 2).contiguous().view([sz_b, sz_t, sz_c]);
        ys.apply(&proj).dropout(cfg.dropout, train)
    })
}

fn block(p: &nn::Path, cfg: Config) -> impl ModuleT + use<> {
    let ln1 = nn::layer_norm(p / "ln1", vec![cfg.n_embd], Default::default());
    let ln2 = nn::layer_norm(p / "ln2", vec![cfg.n_embd], Default::default());
    let attn = causal_self_attention(p, cfg);
    let lin1 = linear(p / "lin1", cfg.n_embd, 4 * cfg.n_embd, true);
    let lin2 = linear(p / "lin2", 4 * cfg.n_embd, cfg.n_embd, true);
    nn::func_t(move |xs, train| {
        let xs = xs + xs.apply(&ln1).apply_t(&attn, train);
        let ys = xs.apply(&ln2).apply(&lin1).gelu("none").apply(&lin2).dropout(cfg.dropout, train);
        xs + ys
    })
}

fn gpt(p: nn::Path, cfg: Config) -> impl ModuleT + use<> {
    let p = &p.set_group(NO_WEIGHT_DECAY_GROUP);
    let tok_emb = nn::embedding(p / "tok_emb", cfg.vocab_size, cfg.n_embd, Default::default());
    let pos_emb = p.zeros("pos_emb", &[1, cfg.block_size, cfg.n_embd]);
    let ln_f = nn::layer_norm(p / "ln_f", vec![cfg.n_embd], Default::default());
    let head = linear(p / "head", cfg.n_embd, cfg.vocab_size, false);
    let mut blocks = nn::seq_t();
    for block_idx in 0..cfg.n_layer {
        blocks = blocks.add(block(&(p / block_idx), cfg));
    }
    nn::func_t(move |xs, train| {
        let (_sz_b, sz_t) = xs.size2().expect("two dimensions");
        let tok_emb = xs.apply(&tok_emb);
        let pos_emb = pos_emb.i((.., ..sz_t, ..));
        (tok_emb + pos_emb)
            .dropout(cfg.dropout, train)
            .apply_t(&blocks, train)
            .apply(&ln_f)
            .apply(&head)
    })
}

/// Generates some sample string using the GPT model.
fn sample(data: &TextData, gpt: &impl ModuleT, input: Tensor) -> String {
    let mut input = input;
    let mut result = String::new();
    for _index in 0..SAMPLING_LEN {
        let logits = input.apply_t(gpt, false).i((0, -1, ..));
        let sampled_y = logits.softmax(-1, Kind::Double).multinomial(1, true);
        result.push(data.label_to_char(sampled_y.int64_value(&[0])));
        input = Tensor::cat(&[input, sampled_y.view([1, 1])], 1).narrow(1, 1, BLOCK_SIZE);
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
        let cfg = Config {
            vocab_size: labels,
            n_embd: 16,
            n_head: 2,
            n_layer: 2,
            block_size: BLOCK_SIZE,
            dropout: task.dropout(0.1),
        };
        let gpt = gpt(vs.root() / "gpt", cfg);
        vs.double();
        let mut opt = nn::AdamW::default().build(&vs, 3e-3)?;
        opt.set_weight_decay_group(NO_WEIGHT_DECAY_GROUP, 0.0);
        opt.set_weight_decay_group(WEIGHT_DECAY_GROUP, 0.1);
        let mut idx = 0;
        for epoch in 1..(1 + task.epochs) {
            let mut sum_loss = 0.;
            let mut cnt_loss = 0.;
            for batch in data.iter_shuffle(BLOCK_SIZE + 1, BATCH_SIZE) {
                let xs = batch.narrow(1, 0, BLOCK_SIZE).to_kind(Kind::Int64).to_device(device);
                let ys = batch.narrow(1, 1, BLOCK_SIZE).to_kind(Kind::Int64).to_device(device);
                let logits = xs.apply_t(&gpt, true);
                let loss = cross_entropy(&logits.view([-1, labels]), &ys.view([-1]));
                opt.backward_step_clip(&loss, 0.5);
                sum_loss += f64::try_from(loss)?;
                cnt_loss += 1.0;
                idx += 1;
                if idx % 3 == 0 {
                    println!("Epoch: {}   loss: {:5.3}", epoch, sum_loss / cnt_loss);
                    let input = Tensor::zeros([1, BLOCK_SIZE], (Kind::Int64, device));
                    println!("Sample: {}", sample(data, &gpt, input));
                    if let Err(err) = vs.save(temporary("gpt.ot")) {
                        println!("error while saving {err}");
                    }
                    sum_loss = 0.;
                    cnt_loss = 0.;
                }
            }
        }
        // Only the main rank has written one.
        let _ = std::fs::remove_file(temporary("gpt.ot"));
        Ok(vs.trainable_variables())
    }
}
