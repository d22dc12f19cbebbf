#!/usr/bin/python3
"""The other side of the step benchmarks: the same models in Debian's PyTorch, eager mode.

    torch_step.py MODEL THREADS     MODEL: mlp, cnn, tiny_gpt

Prints one JSON line about its set-up, then answers every line "N" on stdin with one of N measured
training steps (zero_grad, forward, loss, backward, update): {"ms": [...]}. Ends with
status 3 and a sentence on stderr when the set-up would be unfair to PyTorch.

Of the variants that may be faster (foreach or plain updates, channels-last convolutions) it takes
the one that is, measured when it starts.
"""
import ctypes
import json
import os
import sys
import time

if os.environ.get("OMP_NUM_THREADS") != sys.argv[2]:  # before torch starts its threads
    os.environ["OMP_NUM_THREADS"] = sys.argv[2]
try:
    import torch
except ImportError:
    sys.exit("torch_step.py: python3-torch is not installed")
import torch.nn as nn
import torch.nn.functional as F


def unfair(sentence):
    print("torch_step.py: " + sentence, file=sys.stderr)
    sys.exit(3)


def choose_kernels(library):
    """OpenBLAS takes a processor that it does not know for one of 2004 and leaves its vector units
    idle, which is 3 to 5 times slower. Then begin again with the kernels of the nearest one."""
    core = ctypes.CDLL(library).openblas_get_corename
    core.restype = ctypes.c_char_p
    name = core().decode()
    with open("/proc/cpuinfo") as about:
        flags = set(next(line for line in about if line.startswith("flags")).split())
    better = "SkylakeX" if "avx512vl" in flags else "Haswell" if "avx2" in flags else None
    if name in ("Prescott", "Core2", "Nehalem", "Sandybridge") and better:
        if "OPENBLAS_CORETYPE" in os.environ:
            unfair("OpenBLAS computes with the kernels of %s" % name)
        os.environ["OPENBLAS_CORETYPE"] = better
        os.execv(sys.executable, [sys.executable] + sys.argv)
    return name


def check_blas():
    """The reference BLAS is 15 times slower; a pthread one fights with OpenMP."""
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    with open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "blas" in line.split()[-1]}
    if not any("openblas-openmp" in f for f in files):
        unfair("PyTorch uses %s; install libopenblas0-openmp and select it with "
               "update-alternatives --config libblas.so.3-x86_64-linux-gnu" % sorted(files))
    if not torch.backends.mkldnn.is_available():
        unfair("PyTorch has no oneDNN")
    library = next(f for f in sorted(files) if "libopenblas" in f)
    return {"library": library, "kernels": choose_kernels(library)}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + x, inplace=True)


def cnn():
    def conv(i, o, stride):
        return [nn.Conv2d(i, o, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(o),
                nn.ReLU(inplace=True)]
    return nn.Sequential(*conv(1, 32, 1), nn.MaxPool2d(2), Residual(32), *conv(32, 64, 2),
                         Residual(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1),
                         nn.Linear(64, 10))


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024),
                         nn.ReLU(inplace=True), nn.Linear(1024, 10))


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def attend(self, x):
        n, t, d = x.shape
        q, k, v = (part.view(n, t, self.heads, d // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(d, dim=2))
        scores = q @ k.transpose(2, 3) * (d // self.heads) ** -0.5 + self.mask
        y = F.softmax(scores, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(n, t, d))

    def forward(self, x):
        x = x + F.dropout(self.attend(self.ln_1(x)), 0.1)
        y = self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return x + F.dropout(y, 0.1)


class TinyGpt(nn.Module):
    def __init__(self, vocab=256, context=128, width=128, heads=4, depth=4):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, context) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):
        x = F.dropout(self.wte(ids) + self.wpe, 0.1)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1)


def build(name):
    if name == "mlp":
        return mlp(), torch.randn(64, 784), torch.randint(0, 10, (64,))
    if name == "cnn":
        return cnn(), torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    if name == "tiny_gpt":
        return TinyGpt(), torch.randint(0, 256, (8, 128)), torch.randint(0, 256, (8 * 128,))
    sys.exit("torch_step.py: no model is named '%s'" % name)


class Side:
    def __init__(self, name, foreach, channels_last):
        self.model, self.x, self.target = build(name)
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        self.model.train()
        self.update = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9,
                                      foreach=foreach)

    def step(self):
        self.update.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.x), self.target)
        loss.backward()
        self.update.step()

    def measure(self, n):
        ms = []
        for _ in range(n):
            begin = time.perf_counter()
            self.step()
            ms.append((time.perf_counter() - begin) * 1e3)
        return ms


def median(values):
    return sorted(values)[len(values) // 2]


def choose(name):
    best = None
    for channels_last in ([False, True] if name == "cnn" else [False]):
        for foreach in (False, True):
            side = Side(name, foreach, channels_last)
            side.measure(5)
            ms = median(side.measure(15))
            if best is None or ms < best[0]:
                best = (ms, side, {"foreach": foreach, "channels_last": channels_last})
    return best[1], best[2]


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    blas = check_blas()
    if torch.get_num_threads() != threads:
        unfair("PyTorch has %d threads, not %d" % (torch.get_num_threads(), threads))
    side, chosen = choose(name)
    print(json.dumps({"torch": torch.__version__, "blas": blas, "chosen": chosen}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"ms": side.measure(int(line))}), flush=True)


main()
