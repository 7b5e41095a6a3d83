//! `mnist/mnist_linear.rs`: raw leaves, gradient descent by hand, all rows in each step. Unchanged: as there are no batches, every
//! rank takes the steps of one process.
use super::*;

program! {
    [batch = "global"]
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let m = &task.digits;
        println!("train-images: {:?}", m.train_images.size());
        let mut ws = Tensor::zeros([64, 10], (Kind::Double, Device::Cpu)).set_requires_grad(true);
        let mut bs = Tensor::zeros([10], (Kind::Double, Device::Cpu)).set_requires_grad(true);
        for epoch in 1..1 + 5 * task.epochs {
            let logits = m.train_images.mm(&ws) + &bs;
            let loss = logits.log_softmax(-1, Kind::Double).nll_loss(&m.train_labels);
            ws.zero_grad();
            bs.zero_grad();
            loss.backward();
            tch::no_grad(|| {
                ws += ws.grad() * (-1);
                bs += bs.grad() * (-1);
            });
            let test_logits = m.test_images.mm(&ws) + &bs;
            let test_accuracy = test_logits
                .argmax(Some(-1), false)
                .eq_tensor(&m.test_labels)
                .to_kind(Kind::Float)
                .mean(Kind::Float)
                .double_value(&[]);
            println!(
                "epoch: {:4} train loss: {:8.5} test acc: {:5.2}%",
                epoch,
                loss.double_value(&[]),
                100. * test_accuracy
            );
        }
        Ok(vec![ws.detach(), bs.detach()])
    }
}
