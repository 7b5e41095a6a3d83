"""The draws of PyTorch's WeightedRandomSampler, and what default_collate makes of samples.

Usage: python tests/truth/weighted.py > weighted.json

Output: one JSON object:
    "draws": [{"weights": [..], "samples": n, "replacement": bool, "seed": seed, "epoch": epoch, "indices": [..]}],
        each drawn by a generator seeded with seed + epoch;
    "batches": {name: [[dtype, shape], ..]} of two samples each.

Cases in which PyTorch draws samples of weight 0, as fewer are above it than are asked for, are left out.
"""

import itertools
import json
import sys

import torch
from torch.utils.data import WeightedRandomSampler, default_collate

WEIGHTS = [
    [1.0],
    [0.0, 1.0, 3.0],
    [0.1, 0.9, 0.4, 0.7, 3.0, 0.6],
    [2.0**-40, 1.0, 2.0**40],
    [1.0 / (k + 1) for k in range(300)],
    [float(k % 7) for k in range(1000)],
]
SEEDS_AND_EPOCHS = [(0, 0), (0, 1), (42, 3), (2**33 + 5, 2)]


def draws():
    for weights, share, replacement in itertools.product(WEIGHTS, [0.3, 1.0, 2.5], [True, False]):
        samples = max(1, int(share * len(weights)))
        if not replacement and samples > sum(weight > 0 for weight in weights):
            continue
        for seed, epoch in SEEDS_AND_EPOCHS:
            generator = torch.Generator().manual_seed(seed + epoch)
            indices = list(WeightedRandomSampler(weights, samples, replacement, generator=generator))
            yield {
                "weights": weights,
                "samples": samples,
                "replacement": replacement,
                "seed": seed,
                "epoch": epoch,
                "indices": indices,
            }


def leaves(batch):
    if isinstance(batch, torch.Tensor):
        return [[str(batch.dtype), list(batch.shape)]]
    values = batch.values() if isinstance(batch, dict) else batch
    return [leaf for value in values for leaf in leaves(value)]


def batches():
    row = torch.zeros(3, 4)
    cases = {
        "tensors": [row, row],
        "integers": [1, 2],
        "floats": [1.0, 2.0],
        "bools": [True, False],
        "pair": [(row, 7), (row, 9)],
        "nested": [((row, 1.5), [1, 2]), ((row, 2.5), [3, 4])],
        "map": [{"a": row, "b": 1}, {"a": row, "b": 2}],
        "list": [[row, row, row], [row, row, row]],
    }
    return {name: leaves(default_collate(samples)) for name, samples in cases.items()}


def main():
    json.dump({"draws": list(draws()), "batches": batches()}, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
