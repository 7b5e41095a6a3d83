"""The peer of `ddp-worker gpu step`: the same training steps by PyTorch on one GPU, plain or with DDP on one rank.

Usage: python gpu_step.py plain|ddp

Prints {"median_ms": of a step}. With ddp a group of one rank is made over NCCL, on loopback.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def main():
    sizes = [784] + [2048] * 7 + [10]
    layers = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).cuda()
    if sys.argv[1] == "ddp":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        store = dist.HashStore()
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        net = DistributedDataParallel(net, device_ids=[0], gradient_as_bucket_view=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(64, 784, device="cuda"), torch.randint(10, (64,), device="cuda")
    times = []
    for step in range(220):
        start = time.perf_counter()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch.cuda.synchronize()
        if step >= 20:
            times.append(1000 * (time.perf_counter() - start))
    print(json.dumps({"median_ms": statistics.median(times)}))
    if sys.argv[1] == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
