"""The peer of examples/src/bin/bench_step.rs: the same training steps by PyTorch, with DDP under torchrun.

Usage: python ddp_bench.py --model mlp|conv|layers [--steps N] [--warmup K] [--bucket-view]
       python -m torch.distributed.run --nproc-per-node 2 ddp_bench.py ...

Rank 0 prints one JSON line: {"model", "median_ms": of a step, "steps", "parameters", "ranks"}. A step is
zero_grad, forward, backward (with the all-reduce of the gradients where there are ranks) and SGD's step on
one batch that stays the same; the batch is per rank. Before the first and after the last measured step the
ranks wait for each other.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Conv(nn.Module):
    """Two 5x5 convolutions with pooling, two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(1024, 1024)
        self.fc2 = nn.Linear(1024, 10)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x.view(-1, 1, 28, 28)), 2)
        x = F.max_pool2d(self.conv2(x), 2).view(-1, 1024)
        return self.fc2(F.relu(self.fc1(x)))


def chain(sizes, activation):
    """Linear layers with an activation between."""
    layers = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


# Model, batch a rank, features of a row, classes.
MODELS = {
    "mlp": (lambda: chain([784] + [2048] * 7 + [10], nn.ReLU), 64, 784, 10),
    "conv": (Conv, 256, 784, 10),
    "layers": (lambda: chain([64] * 201, nn.Tanh), 32, 64, 64),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--bucket-view", action="store_true")
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(rank)
    build, batch, features, classes = MODELS[args.model]
    net = build()
    parameters = sum(p.numel() for p in net.parameters())
    if ranks > 1:
        net = DistributedDataParallel(net, gradient_as_bucket_view=args.bucket_view)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(batch, features), torch.randint(classes, (batch,))

    times = []
    for step in range(args.warmup + args.steps):
        if step == args.warmup and ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step >= args.warmup:
            times.append(1000 * (time.perf_counter() - start))
    if ranks > 1:
        dist.barrier()
    if rank == 0:
        facts = {"model": args.model, "median_ms": statistics.median(times), "steps": len(times)}
        print(json.dumps(facts | {"parameters": parameters, "ranks": ranks}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
