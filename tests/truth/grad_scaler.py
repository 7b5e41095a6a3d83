"""Twenty-four iterations of torch.amp.GradScaler with two optimizers, as JSON.

Output: {"scales": after each iteration, "weights": of both models after each, "tracker": after each}. Which iterations
have infinities, clip, or set the scale is written here and in tests/src/cases/grad_scaler.rs alike.
"""

import json

import torch

ITERATIONS = 24


def values(shape, seed):
    """Numbers that both sides can compute: a sine over the positions."""
    count = 1
    for size in shape:
        count *= size
    return torch.sin(torch.arange(count, dtype=torch.float64) + 10 * seed).float().view(shape)


def main():
    torch.set_num_threads(1)
    models = [values((2, 3), seed).requires_grad_() for seed in (1, 2)]
    opts = [torch.optim.SGD([models[0]], lr=0.1, momentum=0.9), torch.optim.Adam([models[1]], lr=0.05)]
    options = dict(growth_factor=1.7, backoff_factor=0.3, growth_interval=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, **options)
    facts = {"scales": [], "weights": [], "tracker": []}
    for k in range(ITERATIONS):
        for opt in opts:
            opt.zero_grad()
        for number, weight in enumerate(models):
            loss = (values((4, 3), 3 + k) @ weight.t()).tanh().square().mean()
            if k % 5 == 2 and number == k % 2:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        if k % 2 == 0:
            scaler.unscale_(opts[0])
            torch.nn.utils.clip_grad_norm_([models[0]], 0.05)
        for opt in opts:
            scaler.step(opt)
        scaler.update(4096.0 if k == 11 else None)
        if k == 16:
            # Goes on in another scaler, as after a restart.
            state = scaler.state_dict()
            scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
            scaler.load_state_dict(state)
        facts["scales"].append(scaler.get_scale())
        facts["tracker"].append(scaler._get_growth_tracker())
        facts["weights"].append([weight.detach().flatten().tolist() for weight in models])
    # Growing stops where the scale would be infinite.
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, growth_interval=1)
    weight = torch.ones(1, requires_grad=True)
    opt = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(opt)
    scaler.update()
    facts["largest"] = scaler.get_scale()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
