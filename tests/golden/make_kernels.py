#!/usr/bin/python3
"""Writes kernels/kernels.json and kernels/kernels.bin: inputs, outputs and gradients of every layer
kind as Debian's PyTorch 1.13 computes them, and weights after some steps of its optimizers.
tests/unit/gpu/test_golden.c compares the CPU device with them. Run it from anywhere:

    /usr/bin/python3 tests/golden/make_kernels.py

The .bin is little-endian fp32; the .json tells each tensor's first element and count in it."""

import json
import os
import struct

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(20260101)

data = []
cases = []


def put(tensor):
    flat = tensor.detach().reshape(-1).to(torch.float32).tolist()
    data.extend(flat)
    return [len(data) - len(flat), len(flat)]


def case(name, kind, rows, shape, attr, **tensors):
    cases.append({"name": name, "kind": kind, "rows": rows, "shape": list(shape), "attr": attr,
                  "tensors": {key: put(value) for key, value in tensors.items()}})


def leaf(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).requires_grad_()


def op(name, kind, rows, shape, attr, function, inputs, params=(), extra=None):
    """Forward, then backward of random dy; x0 w0 ... y dy dx0 dw0 ..."""
    y = function(*inputs, *params)
    dy = torch.randn_like(y)
    y.backward(dy)
    tensors = {"y": y, "dy": dy}
    for i, x in enumerate(inputs):
        tensors[f"x{i}"] = x
        if x.requires_grad:
            tensors[f"dx{i}"] = x.grad
    for i, w in enumerate(params):
        tensors[f"w{i}"] = w
        tensors[f"dw{i}"] = w.grad
    tensors.update(extra or {})
    case(name, kind, rows, shape, attr, **tensors)


def linear():
    for rows, shape, features, bias in [(5, (37,), 19, True), (2, (3, 20), 33, False)]:
        params = [leaf(features, shape[-1])] + ([leaf(features)] if bias else [])
        op(f"linear {shape}", "linear", rows, shape, {"features": features, "bias": bias},
           F.linear, [leaf(rows, *shape)], params)


def conv2d():
    for c, h, f, k, s, p, bias in [(3, 8, 16, 3, 1, 1, False), (16, 7, 32, 3, 2, 1, True),
                                   (16, 6, 16, 1, 1, 0, False), (1, 10, 6, 5, 1, 0, True),
                                   (32, 5, 8, 3, 1, 1, False), (3, 14, 16, 7, 2, 3, True)]:
        params = [leaf(f, c, k, k, scale=0.3)] + ([leaf(f)] if bias else [])
        op(f"conv2d {c}x{h} to {f}, {k} {s} {p}", "conv2d", 2, (c, h, h),
           {"features": f, "kernel": k, "stride": s, "pad": p, "bias": bias},
           lambda x, w, b=None: F.conv2d(x, w, b, stride=s, padding=p), [leaf(2, c, h, h)], params)


def batchnorm():
    for rows, shape in [(3, (16, 5, 4)), (4, (5, 3, 3)), (6, (21,))]:
        mean, var = torch.randn(shape[0]), torch.rand(shape[0]) + 0.5
        mean_after, var_after = mean.clone(), var.clone()
        x, w, b = leaf(rows, *shape), leaf(shape[0]), leaf(shape[0])
        evaluated = F.batch_norm(x, mean, var, w, b, False, 0.1, 1e-5)
        op(f"batchnorm {shape}", "batchnorm", rows, shape, {"eps": 1e-5, "momentum": 0.1},
           lambda *a: F.batch_norm(a[0], mean_after, var_after, a[1], a[2], True, 0.1, 1e-5),
           [x], [w, b], {"w2": mean, "w3": var, "eval": evaluated, "after2": mean_after,
                         "after3": var_after})


def layernorm():
    for rows, shape in [(3, (29,)), (2, (4, 64))]:
        op(f"layernorm {shape}", "layernorm", rows, shape, {"eps": 1e-5},
           lambda x, w, b: F.layer_norm(x, shape[-1:], w, b, 1e-5), [leaf(rows, *shape)],
           [leaf(shape[-1]), leaf(shape[-1])])


def pointwise():
    for shape in [(77,), (16, 3, 3)]:
        op(f"relu {shape}", "relu", 2, shape, {}, F.relu, [leaf(2, *shape)])
        op(f"gelu {shape}", "gelu", 2, shape, {}, lambda x: F.gelu(x, approximate="tanh"),
           [leaf(2, *shape, scale=2.5)])
        op(f"add {shape}", "add", 2, shape, {}, torch.add, [leaf(2, *shape), leaf(2, *shape)])
        op(f"flatten {shape}", "flatten", 2, shape, {}, lambda x: x.flatten(1), [leaf(2, *shape)])


def pool():
    for shape, k, s, p in [((16, 7, 7), 3, 2, 1), ((3, 6, 6), 2, 2, 0), ((16, 6, 6), 2, 2, 0)]:
        op(f"maxpool2d {shape} {k}", "maxpool2d", 2, shape,
           {"kernel": k, "stride": s, "pad": p},
           lambda x: F.max_pool2d(x, k, s, p), [leaf(2, *shape)])
        op(f"global_avgpool2d {shape}", "global_avgpool2d", 2, shape, {},
           lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), [leaf(2, *shape)])


def sequence():
    ids = torch.randint(0, 11, (3, 9))
    op("embedding", "embedding", 3, (9,), {"vocab": 11, "features": 20},
       F.embedding, [ids], [leaf(11, 20)])
    op("position", "position", 3, (6, 10), {}, lambda x, w: x + w, [leaf(3, 6, 10)], [leaf(6, 10)])
    for t, heads, d, causal in [(12, 2, 8, True), (12, 3, 4, False), (70, 1, 16, True)]:
        def attention(qkv):
            n, width = qkv.shape[0], heads * d
            q, k, v = (part.view(n, t, heads, d).transpose(1, 2) for part in qkv.split(width, 2))
            scores = q @ k.transpose(2, 3) / d ** 0.5
            if causal:
                mask = torch.ones(t, t, dtype=torch.bool).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            return (scores.softmax(3) @ v).transpose(1, 2).reshape(n, t, width)
        op(f"attention {t} {heads} {d} {causal}", "attention", 2, (t, 3 * heads * d),
           {"heads": heads, "causal": causal}, attention, [leaf(2, t, 3 * heads * d, scale=1.5)])


def cross_entropy():
    for rows, shape, ignore in [(6, (10,), None), (3, (5, 33), None), (3, (5, 33), -100)]:
        z = leaf(rows, *shape, scale=3.0)
        target = torch.randint(0, shape[-1], (rows, *shape[:-1]))
        attr = {}
        if ignore is not None:
            target[0] = ignore
            attr["ignore_index"] = ignore
        flat = z.reshape(-1, shape[-1])
        kept = target.reshape(-1)
        loss = F.cross_entropy(flat, kept, reduction="sum",
                               ignore_index=-100 if ignore is None else ignore)
        n_valid = int((kept != (-100 if ignore is None else ignore)).sum())
        (loss / n_valid).backward()
        valid = kept >= 0
        correct = int((flat.argmax(1)[valid] == kept[valid]).sum())
        case(f"cross_entropy {shape} {ignore}", "cross_entropy", rows, shape, attr, x0=z,
             x1=target, dx0=z.grad, loss=loss.reshape(1), n_valid=torch.tensor([float(n_valid)]),
             n_correct=torch.tensor([float(correct)]))


def updates():
    steps, n = 5, 37
    rules = [("sgd", {"lr": 0.1}), ("sgd", {"lr": 0.1, "weight_decay": 0.01}),
             ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
             ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.001}),
             ("adamw", {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999,
                        "eps": 1e-8}),
             ("adamw", {"lr": 0.003, "weight_decay": 0.0, "beta1": 0.8, "beta2": 0.95,
                        "eps": 1e-6})]
    for kind, rule in rules:
        w = leaf(n)
        keyed = dict(rule)
        if kind == "adamw":
            keyed["betas"] = (keyed.pop("beta1"), keyed.pop("beta2"))
        optimizer = (torch.optim.SGD if kind == "sgd" else torch.optim.AdamW)([w], **keyed)
        tensors = {"w": w.clone()}
        for step in range(steps):
            w.grad = torch.randn(n)
            tensors[f"g{step}"] = w.grad.clone()
            optimizer.step()
            tensors[f"w{step}"] = w.clone()
        case(f"{kind} {rule}", kind, steps, (n,), rule, **tensors)


for make in (linear, conv2d, batchnorm, layernorm, pointwise, pool, sequence, cross_entropy,
             updates):
    make()

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels")
with open(os.path.join(folder, "kernels.bin"), "wb") as out:
    out.write(struct.pack(f"<{len(data)}f", *data))
with open(os.path.join(folder, "kernels.json"), "w") as out:
    lines = ",\n".join("  " + json.dumps(one) for one in cases)
    out.write(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')
print(f"{len(cases)} cases, {4 * len(data)} bytes")
