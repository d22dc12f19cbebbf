#!/usr/bin/python3
"""Writes curves/NAME.json: losses, gradient norms and final values of 20 steps of each job in
jobs/, as Debian's PyTorch 1.13 computes them on one thread from the same initial weights, batches
and dropout masks, in float32 and again in float64. tests/simulation/test_parity.c compares
FuncPipe with them. The tool dump_case, built with the tests, writes what this script reads:

    /usr/bin/python3 tests/golden/make_curves.py build/dev/tests/dump_case
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {"F32": torch.float32, "I32": torch.int32, "U8": torch.uint8}
FINAL_VALUES = 32  # of each parameter, evenly spaced

# Where a ReLU's input lies within rounding errors of 0, or two maxima of a pool within rounding
# errors of one another, rounding decides where a gradient goes, and no two implementations agree.
# The jobs' seeds are such that this does not happen: nothing comes nearer than this in float64.
LEAST_MARGIN = 5e-6
margins = []


def read_safetensors(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    hash_text = header.pop("__metadata__")["hash"]
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        tensors[name] = torch.frombuffer(data[first:end], dtype=dtype).reshape(entry["shape"])
    return tensors, hash_text


def relu(x):
    if torch.is_grad_enabled():
        margins.append(x.detach().abs().min().item())
    return F.relu(x)


def max_pool2(x):
    if torch.is_grad_enabled():
        windows = F.unfold(x.detach().reshape(-1, 1, *x.shape[2:]), 2, stride=2)
        first, second = windows.topk(2, dim=1).values.unbind(1)
        margins.append((first - second)[first > 0].min().item())  # 0: a ReLU's, without gradient
    return F.max_pool2d(x, 2)


class GivenDropout(nn.Module):
    """Dropout by a mask from outside: 1 keep, 0 drop."""

    def __init__(self, p):
        super().__init__()
        self.p = p
        self.mask = None

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        return x * self.mask.to(x.dtype) / (1 - self.p)


class Mlp(nn.Module):
    def __init__(self, input, hidden, classes):
        super().__init__()
        widths = [math.prod(input)] + hidden + [classes]
        self.n = len(widths) - 1
        for i in range(self.n):
            self.add_module(f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        x = x.flatten(1)
        for i in range(1, self.n):
            x = relu(self.get_submodule(f"fc{i}")(x))
        return self.get_submodule(f"fc{self.n}")(x)


def conv3x3(before, after, stride=1):
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


class ConvNorm(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv = conv3x3(before, after, stride)
        self.bn = nn.BatchNorm2d(after)

    def forward(self, x):
        return relu(self.bn(self.conv(x)))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = conv3x3(width, width), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3x3(width, width), nn.BatchNorm2d(width)

    def forward(self, x):
        y = relu(self.bn1(self.conv1(x)))
        return relu(x + self.bn2(self.conv2(y)))


class Cnn(nn.Module):
    def __init__(self, image, channels, blocks, classes, dropout):
        super().__init__()
        self.stem = ConvNorm(image[0], channels[0], 1)
        self.layers = []
        for i, width in enumerate(channels):
            layer = nn.Module()
            steps = [("down", ConvNorm(channels[i - 1], width, 2))] if i > 0 else []
            steps += [(str(b), Residual(width)) for b in range(blocks)]
            for name, step in steps:
                layer.add_module(name, step)
                self.layers.append(step)
            self.add_module(f"layer{i + 1}", layer)
        self.dropout = GivenDropout(dropout)
        self.fc = nn.Linear(channels[-1], classes)

    def forward(self, x):
        x = max_pool2(self.stem(x))
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1)))


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.dropout = GivenDropout(dropout)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(width, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(3)
        return self.dropout(self.c_proj((weights @ v).transpose(1, 2).reshape(n, t, width)))


class Feed(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = GivenDropout(dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.ln_2, self.mlp = nn.LayerNorm(width), Feed(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class TinyGpt(nn.Module):
    def __init__(self, vocab, context, width, heads, depth, dropout):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.drop = GivenDropout(dropout)
        self.h = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.drop(self.wte(ids) + self.wpe.weight)
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


MODELS = {"mlp": Mlp, "cnn": Cnn, "tiny_gpt": TinyGpt}


def load_weights(model, tensors):
    weights = {name[len("weight."):]: value for name, value in tensors.items()
               if name.startswith("weight.")}
    found = model.load_state_dict(weights, strict=False)
    missing = [name for name in found.missing_keys if not name.endswith("num_batches_tracked")]
    assert not missing and not found.unexpected_keys, found


def make_optimizer(model, update):
    """Biases and norms, which have one dimension, do not decay."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1],
               "weight_decay": update["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    if update["kind"] == "adamw":
        return torch.optim.AdamW(groups, lr=update["lr"], betas=(0.9, 0.999), eps=1e-8)
    return torch.optim.SGD(groups, lr=update["lr"], momentum=update["momentum"],
                           nesterov=update.get("nesterov", False))


def learning_rate(update, step, steps):
    schedule = update["schedule"]
    warmup = schedule["warmup_steps"]
    if step < warmup:
        return update["lr"] * (step + 1) / warmup
    part = (step - warmup) / (steps - 1 - warmup)
    if schedule["kind"] == "cosine":
        part = (1 - math.cos(math.pi * part)) / 2
    return update["lr"] + (schedule["final_lr"] - update["lr"]) * part


def sum_loss(model, inputs, targets):
    logits = model(inputs)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1),
                           reduction="sum")


def backward_batch(job, model, tensors, step, dtype):
    """Accumulates the gradients of a step micro-batch by micro-batch and returns its loss: the sum
    over the whole batch divided by the number of targets in the whole batch."""
    inputs, targets = tensors[f"input.{step}"], tensors[f"target.{step}"].long()
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs.long()
    loss = 0.0
    for first in range(0, len(inputs), job["micro_batch"]):
        rows = slice(first, first + job["micro_batch"])
        for name, module in model.named_modules():
            if isinstance(module, GivenDropout):
                module.mask = tensors[f"mask.{step}.{name}"][rows]
        part = sum_loss(model, inputs[rows], targets[rows])
        (part / targets.numel()).backward()
        loss += part.item() / targets.numel()
    return loss


def evaluate(job, model, tensors, dtype):
    inputs, targets = tensors["eval.input"], tensors["eval.target"].long()
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs.long()
    model.eval()
    with torch.no_grad():
        loss = sum(sum_loss(model, x, y).item() for x, y in
                   zip(inputs.split(job["batch"]), targets.split(job["batch"])))
    return loss / targets.numel()


def final_values(model):
    """Some values of each parameter and statistic. The keys' bias is left out: softmax does not
    change when all scores of a row grow alike, so its gradient is 0, and what AdamW makes of the
    rounding errors in its place is chance."""
    final = {}
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        flat = value.reshape(-1)
        step = -(-len(flat) // FINAL_VALUES)
        values = [float(f"{v:.9g}") for v in flat[::step].tolist()]
        if name.endswith("c_attn.bias"):
            key = range(len(flat) // 3, 2 * len(flat) // 3)
            values = [None if i * step in key else v for i, v in enumerate(values)]
        final[name] = values
    return final


def train(job, tensors, dtype):
    model = MODELS[job["model"]["zoo"]](**job["model"]["options"]).to(dtype)
    load_weights(model, tensors)
    optimizer = make_optimizer(model, job["update"])
    clip = job["update"].get("clip_norm", math.inf)
    losses, norms = [], []
    for step in range(job["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(job["update"], step, job["steps"])
        optimizer.zero_grad()
        losses.append(backward_batch(job, model, tensors, step, dtype))
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
    return {"loss": losses, "norm": norms, "eval_loss": evaluate(job, model, tensors, dtype),
            "final": final_values(model)}


def apart(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def make_curve(name, dump_case):
    job_path = os.path.join(HERE, "jobs", name + ".json")
    with open(job_path) as file:
        job = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        dumped = os.path.join(folder, "case.safetensors")
        subprocess.run([dump_case, job_path, dumped], check=True)
        tensors, hash_text = read_safetensors(dumped)
    single = train(job, tensors, torch.float32)
    margins.clear()
    double = train(job, tensors, torch.float64)
    margin = min(margins, default=math.inf)
    assert margin >= LEAST_MARGIN, f"{name}: margin {margin:.3g}: take another seed"
    between = {key: float(f"{apart(single[key], double[key]):.3g}") for key in ("loss", "norm")}
    between["eval_loss"] = float(f"{apart([single['eval_loss']], [double['eval_loss']]):.3g}")
    curve = {"torch": torch.__version__, "hash": hash_text, "float32_from_float64": between,
             "margin": None if margin == math.inf else float(f"{margin:.3g}"), "float32": single,
             "float64": double}
    clip = job["update"].get("clip_norm", math.inf)
    clipped = sum(norm > clip for norm in double["norm"])
    assert clip == math.inf or 0 < clipped < job["steps"], "clipping should be on and off"
    with open(os.path.join(HERE, "curves", name + ".json"), "w") as out:
        out.write(format_curve(curve))
    print(f"{name}: loss {double['loss'][0]:.4f} to {double['loss'][-1]:.4f}, {clipped} of "
          f"{job['steps']} steps clipped, margin {margin:.2g}, float32 from float64: {between}")


def format_curve(curve):
    """One line for each list."""
    lines = []
    for key, value in curve.items():
        if key not in ("float32", "float64"):
            lines.append(f'  "{key}": {json.dumps(value)}')
            continue
        parts = [f'    "{name}": {json.dumps(value[name])}' for name in ("loss", "norm",
                                                                          "eval_loss")]
        finals = ",\n".join(f'      "{name}": {json.dumps(values)}'
                            for name, values in value["final"].items())
        parts.append(f'    "final": {{\n{finals}\n    }}')
        lines.append(f'  "{key}": {{\n' + ",\n".join(parts) + "\n  }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if len(sys.argv) != 2:
    sys.exit(__doc__)
for one in MODELS:
    make_curve(one, sys.argv[1])
