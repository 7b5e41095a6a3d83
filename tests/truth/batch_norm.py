"""Batch normalisation of the joined batch, as PyTorch's nn.BatchNorm trains it on one process.

Usage: python tests/truth/batch_norm.py out.npz

Every variant in VARIANTS makes three training steps. out.npz has, for variant v and step k:
    v.weight [C], v.bias [C]            the parameters, which no step changes; missing where the layer has none
    v.k.x, v.k.dy                       the joined input, and the gradient of the loss with respect to the output
    v.k.y, v.k.dx, v.k.dw, v.k.db       the output and the gradients; the loss is the sum of dy * y
    v.k.mean, v.k.var [C]               the running statistics after the step
    v.eval                              the output for the last input in evaluation

The same is computed by the formulas of torch.nn.SyncBatchNorm (torch/nn/modules/_functions.py), which PyTorch itself runs on GPUs
only, over an unequal split of the rows; the script fails where the two differ.

Standard output: one JSON object {"variants", "steps", "rows", "torch"}.
"""

import json
import sys

import numpy as np
import torch
from torch import nn

ROWS, CHANNELS, STEPS = 12, 3, 3
SPLIT = [1, 4, 7]

# name: (layer, shape of a sample, dtype, options)
VARIANTS = {
    "rows": (nn.BatchNorm1d, (), torch.float64, {}),
    "sequences": (nn.BatchNorm1d, (5,), torch.float64, {}),
    "images": (nn.BatchNorm2d, (4, 5), torch.float64, {}),
    "channels_last": (nn.BatchNorm2d, (4, 5), torch.float64, {}),
    "volumes": (nn.BatchNorm3d, (2, 3, 4), torch.float64, {}),
    "plain": (nn.BatchNorm2d, (4, 5), torch.float64, {"affine": False}),
    "slow": (nn.BatchNorm1d, (), torch.float64, {"momentum": 0.01, "eps": 1e-3}),
    "cumulative": (nn.BatchNorm1d, (), torch.float64, {"momentum": None}),
    "single": (nn.BatchNorm2d, (4, 5), torch.float32, {}),
    "single_rows": (nn.BatchNorm1d, (), torch.float32, {}),
}


def synchronised(layer, x, dy):
    """The output and its gradients by the formulas of SyncBatchNorm, with the rows split over ranks."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    over = [0, *range(2, x.dim())]
    parts = list(zip(x.split(SPLIT), dy.split(SPLIT)))
    counts = torch.tensor([part.numel() / CHANNELS for part, _ in parts], dtype=torch.float64)
    means = torch.stack([part.double().mean(over) for part, _ in parts])
    squares = torch.stack([part.double().var(over, unbiased=False) for part, _ in parts])
    total = counts.sum()
    mean = (means * counts[:, None]).sum(0) / total
    # gather_stats_with_counts: the deviations of each rank, and of its mean from the joint one.
    var = ((squares + (means - mean) ** 2) * counts[:, None]).sum(0) / total
    inverse = (var + layer.eps).rsqrt()
    weight = layer.weight.double() if layer.affine else torch.ones(CHANNELS, dtype=torch.float64)
    bias = layer.bias.double() if layer.affine else torch.zeros(CHANNELS, dtype=torch.float64)
    outs, sums, products = [], [], []
    for part, gradient in parts:
        normal = (part.double() - mean.view(shape)) * inverse.view(shape)
        outs.append(normal * weight.view(shape) + bias.view(shape))
        sums.append(gradient.double().sum(over))
        products.append((gradient.double() * (part.double() - mean.view(shape))).sum(over))
    # Each rank's own sums are its gradients of bias and weight; their sums over ranks go into that of the input.
    dy_sum, dy_xmu = sum(sums), sum(products)
    dxs = [
        (
            gradient.double()
            - (dy_sum / total).view(shape)
            - (part.double() - mean.view(shape)) * (inverse**2 * dy_xmu / total).view(shape)
        )
        * (weight * inverse).view(shape)
        for part, gradient in parts
    ]
    return {"y": torch.cat(outs), "dx": torch.cat(dxs), "dw": dy_xmu * inverse, "db": dy_sum}


def check(name, found, expected, limit):
    error = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
    if not error <= limit:
        raise SystemExit(f"{name}: BatchNorm and SyncBatchNorm differ by {error}: this is no truth")


def steps(name, random):
    build, sample, dtype, options = VARIANTS[name]
    layer = build(CHANNELS, dtype=dtype, **options)
    out = {}
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(random.uniform(0.5, 1.5, CHANNELS)))
            layer.bias.copy_(torch.from_numpy(random.standard_normal(CHANNELS)))
        out |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    spread = torch.tensor([1.0, 3.0, 0.2]).view(1, -1, *(1 for _ in sample))
    for k in range(STEPS):
        draw = lambda: torch.from_numpy(random.standard_normal((ROWS, CHANNELS, *sample)))
        # Neither centred nor alike from row to row, so that the ranks' statistics differ.
        drift = torch.linspace(-1, 2, ROWS).view(-1, 1, *(1 for _ in sample))
        x = ((draw() + drift + k) * spread + 5).to(dtype)
        if name == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        dy = draw().to(dtype)
        layer.zero_grad()
        y = layer(x)
        (y * dy).sum().backward()
        found = {"y": y, "dx": x.grad}
        if layer.affine:
            found |= {"dw": layer.weight.grad.clone(), "db": layer.bias.grad.clone()}
        with torch.no_grad():
            truth = synchronised(layer, x, dy)
        limit = 1e-12 if dtype == torch.float64 else 2e-5
        for key, value in found.items():
            check(f"{name} {key}", value, truth[key], limit)
        found |= {"x": x, "dy": dy, "mean": layer.running_mean.clone(), "var": layer.running_var.clone()}
        out |= {f"{name}.{k}.{key}": value for key, value in found.items()}
    layer.eval()
    return out | {f"{name}.eval": layer(x)}


def main():
    torch.set_num_threads(1)
    random = np.random.default_rng(5)
    arrays = {}
    for name in VARIANTS:
        arrays |= {key: np.ascontiguousarray(value.detach().numpy()) for key, value in steps(name, random).items()}
    np.savez(sys.argv[1], **arrays)
    print(json.dumps({"variants": list(VARIANTS), "steps": STEPS, "rows": ROWS, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
