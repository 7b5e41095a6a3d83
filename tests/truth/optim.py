"""Training as PyTorch's DistributedDataParallel does it, step by step, on Gloo and the CPU.

Usage: python tests/truth/optim.py --world W --input in.npz --output out.npz [--bucket-view]
       python tests/truth/optim.py --make in.npz [--steps 50] [--rows 24] [--dtype float64]

in.npz, read by every rank:
    layer0.weight [h, i], layer0.bias [h], layer1.weight ..   the initial weights, in PyTorch's orientation
    x [steps, rows, i], y [steps, rows, o]                     the joint batches; rows must divide by W
One of float32 or float64 throughout; it is the type of the training. Rank r of W trains in step k on rows
r*rows/W .. (r+1)*rows/W of x[k], so that the union over ranks is the joint batch of one process.

The net is linear layers with tanh between; the loss is mse_loss (mean over the rank's rows).

out.npz, for each optimizer o in sgd, adam, adamw:
    o.layer0.weight ..      the final weights of rank 0 (all ranks are checked to be bitwise equal)
    o.loss [steps, W]       each rank's own loss before the step

Optimizers, as in tch's configurations of the same numbers:
    sgd    lr 0.05, momentum 0.9, dampening 0, weight decay 1e-4, no Nesterov
    adam   lr 1e-3, betas 0.9 0.999, eps 1e-8, weight decay 0
    adamw  lr 1e-3, betas 0.9 0.999, eps 1e-8, weight decay 1e-2

Standard output: one JSON object {"world", "steps", "rows", "dtype", "optimizers", "torch"}.
Both files are what tch::Tensor::read_npz and write_npz take (not compressed).
"""

import argparse
import json
import multiprocessing
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2),
}


class Net(nn.Module):
    """The layers of the file, tanh between them."""

    def __init__(self, arrays):
        super().__init__()
        count = sum(name.endswith(".weight") for name in arrays)
        for k in range(count):
            weight = torch.from_numpy(arrays[f"layer{k}.weight"])
            layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(torch.from_numpy(arrays[f"layer{k}.bias"]))
            self.add_module(f"layer{k}", layer)

    def forward(self, x):
        layers = list(self.children())
        for layer in layers[:-1]:
            x = torch.tanh(layer(x))
        return layers[-1](x)


def train(rank, world, arrays, optimizer, bucket_view):
    """The final weights by name, and the loss of each step."""
    net = Net(arrays)
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=bucket_view)
    opt = OPTIMIZERS[optimizer](ddp.parameters())
    x, y = (torch.from_numpy(arrays[name]) for name in ("x", "y"))
    share = x.shape[1] // world
    rows = slice(rank * share, (rank + 1) * share)
    losses = []
    for k in range(x.shape[0]):
        loss = nn.functional.mse_loss(ddp(x[k, rows]), y[k, rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return {name: p.detach().numpy() for name, p in net.named_parameters()}, losses


def check_equal(weights, world):
    """All ranks must hold the same bits."""
    for name, array in weights.items():
        held = [torch.empty_like(torch.from_numpy(array)) for _ in range(world)]
        dist.all_gather(held, torch.from_numpy(array))
        if any(not torch.equal(held[0], other) for other in held[1:]):
            raise SystemExit(f"{name} differs between the ranks: this is no truth")


def worker(rank, world, source, folder, bucket_view):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    # A file as the store: nothing listens outside loopback, and no port can be taken.
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    arrays = dict(np.load(source))
    out = {}
    for optimizer in OPTIMIZERS:
        weights, losses = train(rank, world, arrays, optimizer, bucket_view)
        check_equal(weights, world)
        out[f"{optimizer}.loss"] = np.array(losses, dtype=arrays["x"].dtype)
        if rank == 0:
            out |= {f"{optimizer}.{name}": array for name, array in weights.items()}
    np.savez(os.path.join(folder, f"rank{rank}.npz"), **out)
    dist.destroy_process_group()


def run(args):
    with np.load(args.input) as arrays:
        steps, rows, _ = arrays["x"].shape
        dtype = str(arrays["x"].dtype)
    if rows % args.world:
        raise SystemExit(f"{rows} rows a step do not divide by {args.world} ranks; give a multiple")
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=worker, args=(r, args.world, args.input, folder, args.bucket_view))
            for r in range(args.world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        failed = [r for r, process in enumerate(ranks) if process.exitcode]
        if failed:
            raise SystemExit(f"ranks {failed} failed; their words are above")
        parts = [dict(np.load(os.path.join(folder, f"rank{r}.npz"))) for r in range(args.world)]
    out = parts[0]
    for optimizer in OPTIMIZERS:
        name = f"{optimizer}.loss"
        out[name] = np.stack([part[name] for part in parts], axis=1)
    np.savez(args.output, **out)
    facts = {"world": args.world, "steps": steps, "rows": rows, "dtype": dtype}
    print(json.dumps(facts | {"optimizers": list(OPTIMIZERS), "torch": torch.__version__}))


def make(args):
    """An input of its own, for trying this script."""
    random = np.random.default_rng(7)
    sizes = [12, 32, 24, 5]
    arrays = {}
    for k, (fan_in, fan_out) in enumerate(zip(sizes, sizes[1:])):
        arrays[f"layer{k}.weight"] = random.standard_normal((fan_out, fan_in)) / np.sqrt(fan_in)
        arrays[f"layer{k}.bias"] = 0.1 * random.standard_normal(fan_out)
    arrays["x"] = random.standard_normal((args.steps, args.rows, sizes[0]))
    arrays["y"] = np.tanh(arrays["x"] @ random.standard_normal((sizes[0], sizes[-1])))
    np.savez(args.make, **{name: array.astype(args.dtype) for name, array in arrays.items()})
    print(json.dumps({"steps": args.steps, "rows": args.rows, "dtype": args.dtype}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--input")
    parser.add_argument("--output")
    parser.add_argument("--bucket-view", action="store_true")
    parser.add_argument("--make", metavar="FILE", help="write an input file instead")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    args = parser.parse_args()
    if args.make:
        make(args)
    elif args.input and args.output:
        run(args)
    else:
        parser.error("either --make FILE, or --input FILE and --output FILE")


if __name__ == "__main__":
    main()
