"""Training with PyTorch's communication hooks: DistributedDataParallel on Gloo and the CPU, two ranks, some steps.

Usage: python tests/truth/hooks.py --output out.npz

out.npz:
    a [24, 16], b [16, 12], c [12]       the initial weights; the model is tanh(x a) b + c
    x [steps, 2, rows, 24]               the batch of each rank in each step; the loss is the mean of the squared output
    H.a, H.b, H.c for H in none, bf16, fp16, powersgd     the weights after all steps of SGD (lr 0.5)

All are f32. PowerSGD compresses a and b to rank 2 after 3 whole steps, with error feedback and warm start. Its first factors are
normal numbers that the project makes by itself: SplitMix64 and the polar form of Box and Muller, from the parameter's number
(a 0, b 1). torch.randn is replaced by that for the hook.
"""

import argparse
import math
import multiprocessing
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, START = 12, 8, 3
MASK = (1 << 64) - 1


def normal(parameter, count):
    state = parameter << 32
    numbers = []

    def uniform():
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        return ((z >> 11) + 1) / (1 << 53)

    for _ in range(count):
        radius, angle = uniform(), uniform()
        numbers.append(math.sqrt(-2 * math.log(radius)) * math.cos(math.tau * angle))
    return torch.tensor(numbers, dtype=torch.float64)


class Net(nn.Module):
    def __init__(self, data):
        super().__init__()
        for name in "abc":
            self.register_parameter(name, nn.Parameter(torch.from_numpy(data[name]).clone()))

    def forward(self, x):
        return torch.tanh(x @ self.a) @ self.b + self.c


def register(model, hook):
    if hook == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        # Of the factors Q, that of a has 16 rows and that of b 12.
        numbers = {16: 0, 12: 1}

        def randn(*size, device, dtype):
            return normal(numbers[size[1]], size[1] * size[2]).to(dtype).view(*size)

        powerSGD_hook.torch.randn = randn
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=START, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def train(rank, store, data, hook, queue):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(Net(data))
    register(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.from_numpy(data["x"][step, rank])).square().mean().backward()
        optimizer.step()
    if rank == 0:
        queue.put({f"{hook}.{name}": getattr(model.module, name).detach().numpy() for name in "abc"})
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    output = parser.parse_args().output
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    random = np.random.default_rng(0)
    shapes = {"a": (24, 16), "b": (16, 12), "c": (12,), "x": (STEPS, 2, ROWS, 24)}
    data = {name: (random.standard_normal(s) * 0.5).astype(np.float32) for name, s in shapes.items()}
    arrays = dict(data)
    context = multiprocessing.get_context("fork")
    for hook in ["none", "bf16", "fp16", "powersgd"]:
        with tempfile.TemporaryDirectory() as folder:
            queue = context.Queue()
            ranks = [
                context.Process(target=train, args=(rank, f"{folder}/store", data, hook, queue)) for rank in range(2)
            ]
            for rank in ranks:
                rank.start()
            arrays.update(queue.get(timeout=120))
            for rank in ranks:
                rank.join()
                assert rank.exitcode == 0, f"a rank of {hook} failed"
    np.savez(output, **arrays)


if __name__ == "__main__":
    main()
