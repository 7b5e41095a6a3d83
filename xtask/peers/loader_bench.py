"""The peer of examples/src/bin/bench_loader.rs: the same passes through a PyTorch DataLoader.

Usage: python loader_bench.py --data DIR --kind samples|at-once --workers N [--batch B] [--passes P]

DIR holds MNIST's files in IDX form, gzipped. A sample is an image (784 floats) and its label (int64), in an order
that is shuffled for each pass. `samples` gives one sample at a time and stacks them (TensorDataset as it is);
`at-once` gathers a batch by `__getitems__`, the fastest form that PyTorch's own loader has.

Prints one JSON line: {"median_per_s": samples a second over a pass, "samples": in a pass, "checksum": of what came}.
The first pass, which starts the workers, is not counted, and workers are persistent: PyTorch at its best.
"""

import argparse
import gzip
import json
import os
import statistics
import time

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset


def read(path, dims):
    with gzip.open(path) as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=4 + 4 * dims).copy())


class AtOnce(TensorDataset):
    """Gives all samples of a batch at once, collated."""

    def __getitems__(self, indices):
        index = torch.tensor(indices)
        return [tensor.index_select(0, index) for tensor in self.tensors]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--kind", choices=["samples", "at-once"], required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()

    images = read(os.path.join(args.data, "train-images-idx3-ubyte.gz"), 3).view(-1, 784).float() / 255
    labels = read(os.path.join(args.data, "train-labels-idx1-ubyte.gz"), 1).long()
    torch.manual_seed(1)
    at_once = args.kind == "at-once"
    loader = DataLoader(
        (AtOnce if at_once else TensorDataset)(images, labels),
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        collate_fn=(lambda batch: batch) if at_once else None,
    )
    speeds = []
    for turn in range(args.passes + 1):
        start, count, total = time.perf_counter(), 0, 0
        for xs, ys in loader:
            count += xs.shape[0]
            total += int(ys[-1])
        if turn > 0:
            speeds.append(count / (time.perf_counter() - start))
    checksum = sum(int(ys.sum()) for _, ys in loader)
    print(json.dumps({"median_per_s": statistics.median(speeds), "samples": count, "checksum": checksum}), flush=True)


if __name__ == "__main__":
    main()
