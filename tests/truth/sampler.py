"""The indices that PyTorch's DistributedSampler gives, over a grid of cases.

Usage: python tests/truth/sampler.py > sampler.json

Output: one JSON list; each element is one rank of one case:
    {"n": data set size, "world": ranks, "rank": this rank, "seed": seed, "epoch": set_epoch's argument,
     "shuffle": bool, "drop_last": bool, "indices": [the rank's indices, in order]}

The grid holds a world larger than the data (padding repeats it), sizes that do and do not divide, and
seeds and epochs whose sum is equal while the pair differs (PyTorch seeds with seed + epoch). Cases that
PyTorch refuses are left out: none is in the grid.
"""

import itertools
import json
import sys

from torch.utils.data import DistributedSampler

SIZES = [1, 2, 3, 7, 8, 10, 29, 64, 101, 1000]
WORLDS = [1, 2, 3, 4, 7]
SEEDS_AND_EPOCHS = [(0, 0), (0, 1), (1, 0), (42, 3), (2**40 + 5, 11)]


def cases():
    for n, world, shuffle, drop_last in itertools.product(SIZES, WORLDS, [True, False], [True, False]):
        # Unshuffled, seed and epoch change nothing: two pairs show that.
        pairs = SEEDS_AND_EPOCHS if shuffle else SEEDS_AND_EPOCHS[:2]
        for (seed, epoch), rank in itertools.product(pairs, range(world)):
            yield n, world, rank, seed, epoch, shuffle, drop_last


def indices(n, world, rank, seed, epoch, shuffle, drop_last):
    sampler = DistributedSampler(
        range(n), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def main():
    keys = ["n", "world", "rank", "seed", "epoch", "shuffle", "drop_last"]
    rows = [dict(zip(keys, case)) | {"indices": indices(*case)} for case in cases()]
    json.dump(rows, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
