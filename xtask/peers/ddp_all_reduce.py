"""The peer of examples/src/bin/bench_all_reduce.rs: torch.distributed.all_reduce over Gloo, alone.

Usage: python -m torch.distributed.run --nproc-per-node 2 ddp_all_reduce.py --sizes 4096,8192 [--seconds S]

Rank 0 prints one JSON line: {"sizes": [{"bytes", "median_us"} ..]}.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist


def measure(tensor, seconds):
    """The median time in microseconds, over as many rounds on all ranks."""
    dist.all_reduce(tensor)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    once = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(once)
    once = max(once.item() / dist.get_world_size(), 1e-9)
    rounds = min(max(int(seconds / once), 5), 500)
    times = []
    dist.barrier()
    for _ in range(rounds):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    sizes = [int(size) for size in args.sizes.split(",")]
    lines = [{"bytes": size, "median_us": measure(torch.zeros(size // 4), args.seconds)} for size in sizes]
    if dist.get_rank() == 0:
        print(json.dumps({"sizes": lines}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
