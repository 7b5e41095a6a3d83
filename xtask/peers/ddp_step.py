"""The peer of examples/src/bin/bench_step: the same training steps by PyTorch, with DDP under torchrun.

Usage: python ddp_step.py --model mlp|conv|layers|transformer|embedding [--seconds S] [--warmup K] [--bucket-view]
       python -m torch.distributed.run --nproc-per-node 2 ddp_step.py ...

Rank 0 prints one JSON line: {"model", "median_ms": of a step, "steps", "parameters", "start_s", "peak_mib"}. A step is
forward, zero_grad, backward (with the all-reduce of the gradients where there are ranks) and SGD's step, on one batch a
rank that stays the same. start_s is from the time in BENCH_STARTED (seconds since 1970) to the end of the first step,
peak_mib the largest resident memory of a rank (VmHWM), the mean over the ranks.
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

VOCABULARY, LENGTH, WIDTH, HEADS = 4096, 64, 256, 4


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


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).view(-1, LENGTH, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(-1, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens and places embedded, blocks, a norm and a linear layer to the vocabulary."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(LENGTH))
        return self.head(self.norm(self.blocks(x))).view(-1, VOCABULARY)


class Bag(nn.Module):
    """The mean of a bag of embedded tokens, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.tokens, self.out = nn.Embedding(200_000, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.tokens(x).mean(1))


def chain(sizes, activation):
    """Linear layers with an activation between."""
    layers = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def rows(batch, features, classes):
    return torch.randn(batch, features), torch.randint(classes, (batch,))


def tokens(high, batch, length, classes, count):
    return torch.randint(high, (batch, length)), torch.randint(classes, (count,))


# Model, and a batch of its inputs and classes.
MODELS = {
    "mlp": (lambda: chain([784] + [2048] * 7 + [10], nn.ReLU), lambda: rows(64, 784, 10)),
    "conv": (Conv, lambda: rows(256, 784, 10)),
    "layers": (lambda: chain([64] * 201, nn.Tanh), lambda: rows(32, 64, 64)),
    "transformer": (Transformer, lambda: tokens(VOCABULARY, 8, LENGTH, VOCABULARY, 8 * LENGTH)),
    "embedding": (Bag, lambda: tokens(200_000, 256, 16, 10, 256)),
}


# The fewest and the most measured steps.
STEPS = 8, 100


def peak_mib():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def mean(value, ranks):
    if ranks == 1:
        return value
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--bucket-view", action="store_true")
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(rank)
    build, batch = MODELS[args.model]
    net = build()
    parameters = sum(p.numel() for p in net.parameters())
    if ranks > 1:
        net = DistributedDataParallel(net, gradient_as_bucket_view=args.bucket_view)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = batch()

    def step():
        start = time.perf_counter()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return 1000 * (time.perf_counter() - start)

    started = os.environ.get("BENCH_STARTED")
    first = None
    for _ in range(args.warmup):
        last = step()
        if first is None and started:
            first = time.time() - float(started)
    # The ranks' own figures differ, and all take as many steps.
    steps = int(1000 * args.seconds / mean(last, ranks))
    times = [step() for _ in range(min(max(steps, STEPS[0]), STEPS[1]))]
    peak = mean(peak_mib(), ranks)
    if rank == 0:
        facts = {"model": args.model, "median_ms": statistics.median(times), "steps": len(times)}
        facts |= {"parameters": parameters, "start_s": first, "peak_mib": peak}
        print(json.dumps(facts), flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
