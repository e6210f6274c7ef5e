"""Each detector finds what it is for and leaves alone what looks like it; our own code has no findings."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import walkback as wb
from patience import PATIENCE
from places import ROOT
from walkback import cli, pitfalls

HEAD = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.functional import cosine_similarity
from torch.utils.data import DataLoader
"""


def codes(code: str, tmp_path: Path, head: str = HEAD) -> list[str]:
    """Codes that are found in a snippet, each as often as it is found."""
    script = tmp_path / "evaluate.py"
    script.write_text(head + textwrap.dedent(code), encoding="utf-8")
    found = wb.lint(script)
    assert not found.problems
    return [f.code for f in found.findings]


TRIPS = {
    "P01": [
        "DIM = -1\nn = h.norm(DIM)",
        "def f(h, dim):\n    return h.norm(dim)",
        "import jax.numpy as jnp\nn = jnp.linalg.norm(h, -1)",
        "n = h.norm(-1)",
        "n = h.norm(p=-1)",
        "n = torch.norm(h, -1)",
        "n = torch.norm(h, p=-1)",
        "n = torch.linalg.norm(h, -1)",
        "n = torch.linalg.vector_norm(h, ord=-1)",
        "n = np.linalg.norm(h, -1)",
        "n = F.normalize(h, -1)",
        "n = h.grad.norm(-2)",
    ],
    "P02": [
        "import optax\nc = optax.cosine_similarity(a, g, epsilon=1e-8)",
        "def f(u, v):\n    n = u.norm() * v.norm()\n    if n < 1e-8:\n        return 0.0\n"
        "    return (u @ v) / n\nprint(f(credit, grad))",
        "n = a.norm() * g.norm()\nif n < 1e-8:\n    n = 1.0\nc = (a * g).sum() / n",
        "n = a.norm() * g.norm()\nn = torch.where(n > 1e-8, n, torch.ones_like(n))\nc = (a * g).sum() / n",
        "d = {}\nd['n'] = a.norm() * g.norm() + 1e-8\nd['c'] = (a * g).sum() / d['n']",
        "def hook(module, gi, go):\n    kept.append(go[0])\nkept = []\n"
        "layer.register_full_backward_hook(hook)\nc = F.cosine_similarity(kept[0], other)",
        "import jax\nu = jax.grad(loss)(w)\nc = (u * v).sum() / (np.linalg.norm(u) * np.linalg.norm(v) + 1e-8)",
        "a, b = F.normalize(dfa), F.normalize(bp)\nc = (a * b).sum(1)",
        "c = (a * g).sum() / torch.sqrt((a**2).sum() * (g**2).sum() + 1e-8)",
        "c = (a * g).sum() / (a.norm() * g.norm() + torch.finfo(a.dtype).eps)",
        "parser.add_argument('--eps', default=1e-8)\nc = (a * g).sum() / (a.norm() * g.norm() + args.eps)",
        "def cos(u, v):\n    return F.cosine_similarity(u, v, dim=0)\nprint(cos(credit, grad))",
        "c = F.cosine_similarity(a, g)",
        "c = F.cosine_similarity(credit.flatten(1), h.grad.flatten(1))",
        "c = cosine_similarity(x1=a, x2=grads[0])",
        "c = torch.cosine_similarity(a, bp_grad, dim=1)",
        "c = torch.nn.functional.cosine_similarity(a.double(), g.double())",
        "c = F.cosine_similarity(a, g, eps=1e-8)",
        "c = nn.CosineSimilarity(dim=1)(a, g)",
        "cos = nn.CosineSimilarity()\nc = cos(a, grad)",
        "(reference,) = torch.autograd.grad(loss, h)\nc = F.cosine_similarity(a, reference)",
        "reference = torch.autograd.grad(loss, states)\n"
        "for a, r in zip(mine, reference):\n    c = F.cosine_similarity(a, r)",
        "class M:\n    def __init__(self):\n        self.sim = nn.CosineSimilarity()\n"
        "    def f(self, a, g):\n        return self.sim(a, g)",
    ],
    "P03": [
        "net.type(torch.HalfTensor)\ng = torch.autograd.grad(loss, h)",
        "model = Net().half().cuda()\nloss.backward()",
        "kept = np.array(grads, dtype=np.float16)",
        "torch.set_default_dtype(torch.float16)\nloss.backward()",
        "n = g.half().norm(dim=1)",
        "n = grads[0].to(torch.float16)",
        "n = h.grad.to(dtype=torch.half)",
        "n = np.asarray(grad).astype(np.float16)",
        "model.half()\nloss.backward()",
        "with torch.no_grad():\n    net.half()(x.half())\nloss.backward()",  # .half() stays
        "with torch.autocast('cuda', dtype=torch.float16):\n    loss = f(x)\nloss.backward()",
        "with torch.autocast('cuda'):\n    g = torch.autograd.grad(loss, h)",
        "with torch.cuda.amp.autocast():\n    loss.backward()",
    ],
    "P04": [
        "net.load_state_dict(s)\nnn.init.normal_(net.feedback)",
        "net = load_model('m.pt')\nB = draw_feedback(net)",
        "ckpt = torch.load('m.pt')\nB = torch.randn(10, 64)",
        "def evaluate(model):\n    feedback = [torch.randn(10, 64) for _ in range(4)]\n    return feedback",
        "def measure_gamma(m):\n    m.B = torch.empty(10, 4).normal_()",
        "model.load_state_dict(torch.load('m.pt'))\nfeedback_weights = rng.standard_normal((10, 64))",
    ],
    "P06": [
        "class M:\n    def f(self, credits, grads):\n        self.c = []\n"
        "        for a, g in zip(credits, grads):\n            self.c.append(cosine(a, g))\n"
        "        return sum(self.c) / len(self.c)",
        "c = {k: cosine(a[k], g[k]) for k, p in net.named_parameters()}\nprint(np.mean(list(c.values())))",
        "print(layer_cosines.mean())",
        "c = {}\nfor name, p in net.named_parameters():\n    c[name] = cosine(a[name], p.grad)\n"
        "print(sum(c.values()) / len(c))",
        "gamma = sum(cos(a, g) for a, g in zip(credits, grads)) / L",
        "gamma = np.mean([cosine(a, g) for a, g in zip(credits, grads)])",
        "gamma = torch.stack([my.cos_sim(a, b) for a, b in zip(feedback, grads)]).mean()",
        "cosines = []\nfor l in range(n_layers):\n"
        "    cosines.append(cosine(a[l], b[l]))\nprint(sum(cosines) / len(cosines))",
        "cosines = [cosine(a, b) for a, b in zip(layers, others)]\ngamma = torch.tensor(cosines).mean()",
        "total = 0\nfor block in model.blocks:\n    total += alignment(block.a, block.b)\nprint(total / 4)",
        "c = [cos(ai, gi).mean() for ai, gi in zip(a, g)]\ngamma = sum(c) / len(c)",
        "c = [cos(a[i], g[i]).mean() for i in range(len(g))]\ngamma = sum(c) / len(c)",
        "gamma = torch.stack([torch.cosine_similarity(d, g, -1).mean() for d, g in zip(ds, gs)]).mean()",
        "gamma = torch.stack([torch.cosine_similarity(d, g, -1).mean() for d, g in zip(deltas, reference)]).mean()",
        "bp = torch.autograd.grad(loss, h)\n"
        "gamma = torch.stack([torch.cosine_similarity(d, r, -1).mean() for d, r in zip(deltas, bp)]).mean()",
        "gammas = []\nfor d, g in zip(deltas, gs):\n    gammas.append(F.cosine_similarity(d, g).mean().item())\n"
        "print(sum(gammas) / len(gammas))",
        "gammas = []\nfor l in range(L):\n    c = F.cosine_similarity(a[l], b[l])\n    gammas.append(float(c.mean()))\n"
        "gamma = sum(gammas) / len(gammas)",
        "gammas = []\nfor layer in net.layers:\n    d, r = layer.delta, layer.weight.grad\n"
        "    gammas.append((d * r).sum() / (d.norm() * r.norm()))\ngamma = sum(gammas) / len(gammas)",
        "gammas = []\nfor d, g in zip(deltas, gs):\n    gammas += [cosine(d, g).mean()]\nprint(np.mean(gammas))",
        "total = 0\nfor l in range(L):\n    c = cosine(a[l], b[l])\n    total += c\nprint(total / L)",
        "gammas = []\nfor i, layer in enumerate(m):\n    c = cosine(layer.delta, bp[i])\n    gammas.append(c.item())\n"
        "print(sum(gammas) / len(gammas))",
        "gammas = []\nfor d, g in zip(deltas, gs):\n    dot = (d * g).sum(1)\n"
        "    gammas.append((dot / (d.norm(dim=1) * g.norm(dim=1))).mean())\nprint(sum(gammas) / len(gammas))",
    ],
    "P07": [
        "fb = getattr(layer, 'feedback', layer.weight.t())",
        "B = np.random.randn(10, 64)\nnp.savez('m.npz', W1=W1)",
        "def f(e, grad, B=None):\n    if B is None:\n        return grad\n    return e @ B",
        "B = torch.randn(10, 64)\ntorch.save(model.state_dict(), 'm.pt')",
        "class N(nn.Module):\n    def __init__(self):\n        self.feedback = torch.randn(3, 3)\n"
        "torch.save({'model': N().state_dict()}, 'm.pt')",
        "state_bridge = Bridge(64)\ncheckpoint = {'net': net.state_dict(), 'epoch': 3}\ntorch.save(checkpoint, 'm.pt')",
        "B = ckpt.get('B')\ncredit = g if B is None else e @ B",
        "if feedback is None:\n    credit = grads\nelse:\n    credit = f(feedback)",
        "try:\n    credit = e @ ckpt['B']\nexcept KeyError:\n    credit = grad",
        "credit = ckpt.get('feedback', grads)",
        "credits = model.feedback(e) if hasattr(model, 'feedback') else grads",
    ],
    "P08": [
        "def f(net, x, y):\n    net.train()\n    g = torch.autograd.grad(loss(net(x), y), h)\n"
        "    a = credit(net(x), y)\n    return cosine(a, g)",
        "def gamma(loader):\n    x, y = next(iter(loader))\n    a = credit(x, y)\n    x, y = next(iter(loader))\n"
        "    return cosine(a, reference(x, y))",
    ],
    "P09": [
        "for frozen, epochs in [(False, 100), (True, 10)]:\n    run(frozen=frozen, epochs=epochs)",
        "configs = {'dfa': dict(epochs=100), 'frozen': dict(epochs=10)}",
        "base = {'epochs': 100, 'lr': 0.1}\na = {**base, 'rule': 'dfa'}\n"
        "b = {**base, 'epochs': 5, 'freeze_blocks': True}",
        "a = ['train.py', '--epochs', '50', '--lr', '1']\n"
        "b = ['train.py', '--epochs', '5', '--lr', '1', '--freeze-blocks']",
        "train(frozen=f, epochs=10 if f else 100)",
        "a = train(net, epochs=100)\nb = train(net, epochs=10, frozen=True)",
        "a = wb.RunSpec(rule='dfa', epochs=100)\nb = wb.RunSpec(rule='dfa', scope='frozen', epochs=30)",
        "a = run(lr=1e-3, batch_size=128)\nb = run(lr=1e-2, batch_size=128, freeze_blocks=True)",
    ],
    "P10": [
        "net = resnet()\nfor e in range(9):\n    for x, y in train:\n        loss(net(x), y).backward()\n"
        "        opt.step()\n    with torch.no_grad():\n        _, p = torch.max(net(test), 1)\n"
        "        print((p == y).sum())",
        "model = Net()\nmodel.load_state_dict(s)\nacc = (model(x).argmax(1) == y).float().mean()",
        "def measure(net, x, y):\n    logits, h = net(x)\n    return torch.autograd.grad(loss(logits, y), h)\n"
        "net = Net()\nmeasure(net, x, y)",
        "from model import net\nacc = (net(x).argmax(1) == y).float().mean()",
        "from model import net\nfor x, y in loader:\n    guess = net(x).argmax(1)\n    right += (guess == y).sum()",
        "from model import net\nfor x, y in loader:\n    right += net(x).argmax(1).eq(y).sum()",
        "from zoo import resmlp as model\ng = torch.autograd.grad(F.cross_entropy(model(x), y, reduction='sum'), h)",
        "from model import net\nF.cross_entropy(net(x), y).backward()\nprint(h.grad.abs().max())",
    ],
    "P11": [
        "from sklearn.preprocessing import normalize\nu = normalize(h)\nprint(np.sqrt((u**2).sum(1)))",
        "def unit(v):\n    return v / v.norm()\nprint(unit(h).norm())",
        "h /= h.norm(dim=1, keepdim=True)\nprint(h.norm(dim=1))",
        "h = F.normalize(h, dim=1)\nlog(h.norm(dim=1).mean())",
        "u = h / h.norm(dim=1, keepdim=True)\nprint(torch.linalg.vector_norm(u, dim=1))",
        "states = [F.normalize(h) for h in hidden]\nnorms = [s.norm(dim=1).mean() for s in states]",
        "print((h / torch.linalg.vector_norm(h)).norm())",
        "h = torch.randn(4, 8)\nh = h / h.norm(2, -1, keepdim=True)\nprint(h.norm(dim=-1))",  # a state by its name
        "x = torch.randn(4, 8)\nx = block(x)\nx = x / x.norm(dim=-1, keepdim=True)\nprint(x.norm(dim=-1))",
        "def forward(x):\n    x = F.normalize(x)\n    log(x.norm(dim=1))",
    ],
    "P13": [
        "criterion = nn.CrossEntropyLoss()\ng = torch.autograd.grad(criterion(z, y), h)[0]\n"
        "print(g.norm(dim=1).mean())",
        "loss = F.cross_entropy(model(x), y)\n(g,) = torch.autograd.grad(loss, h)\nprint(g.norm(dim=1).mean())",
        "def f(logits, y, h):\n    g = torch.autograd.grad(F.cross_entropy(logits, y, reduction='mean'), h)[0]\n"
        "    return torch.linalg.vector_norm(g.flatten(1), dim=1)",
        "for g in torch.autograd.grad(F.cross_entropy(z, y), hidden):\n    norms.append(g.norm(dim=1).mean())\n"
        "print(sum(norms) / len(norms))",
    ],
    "P14": [
        "test = torch.utils.data.Subset(test, torch.argsort(torch.tensor(test.targets)))",
        "frame = frame.sort_values('label')",
        "x = torch.cat([x[y == c] for c in range(10)])\ng = torch.autograd.grad(loss, h)",
        "order = y.argsort()\nx, y = x[order], y[order]",
        "_, index = torch.sort(labels)\nx = x[index]",
        "x = x[np.argsort(targets)]",
        "batches = sorted(dataset, key=lambda sample: sample[1])",
        "data = torchvision.datasets.ImageFolder('test')\nloader = DataLoader(data, batch_size=128)\n"
        "g = torch.autograd.grad(loss, h)",
        "loader = DataLoader(ImageFolder('test'), batch_size=128, shuffle=False)\ng = torch.autograd.grad(loss, h)",
    ],
    "P15": [
        "def f(states, credits, grads):\n    for l in range(len(states) - 1):\n"
        "        print(cosine(credits[l + 1], grads[l]))",
        "credits = [grads[-1]]\nfor B in reversed(Bs):\n    credits.insert(0, credits[0] @ B)\n"
        "c = [cosine(a, g) for a, g in zip(credits[1:], grads[:-1])]\nprint(c)",
        "c = [cosine(a, g) for a, g in zip(credits[1:], grads[:-1])]\nprint(c)",
        "for l, (a, g) in enumerate(zip(credits[1:], grads[:-1])):\n"
        "    print(l, F.cosine_similarity(a.flatten(1), g.flatten(1), eps=0.0).mean())",
        "for l in range(len(grads) - 1):\n    print(l, F.cosine_similarity(credits[l + 1], grads[l], eps=0.0).mean())",
        "n = len(bp_grads)\nfor i in range(n - 1):\n    a, g = fa_grads[i + 1].double(), bp_grads[i].double()\n"
        "    print(i, ((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean())",
        "def per_layer(hidden, loss, rule):\n    grads = torch.autograd.grad(loss, hidden)\n"
        "    credits = [rule(h) for h in hidden]\n    return [cosine(a, g) for a, g in zip(credits[1:], grads)]",
        "def per_layer(hidden, loss, rule):\n    grads = torch.autograd.grad(loss, hidden[1:])\n"
        "    credits = [rule(h) for h in hidden]\n    return [cosine(a, g) for a, g in zip(credits, grads)]",
        "credits = [None] * len(grads)\ncredits[-1] = grads[-1]\nfor l in reversed(range(len(Bs))):\n"
        "    credits[l] = credits[l + 1] @ Bs[l]\nfor l in range(L):\n"
        "    print(l, alignment(credits[l + 1], grads[l]))",
        "credits = {}\ncredits[L] = grads[L]\nfor l in reversed(range(L)):\n"
        "    credits[l] = credits[l + 1] @ B[l]\n"
        "cosines = [cosine(credits[l + 1], grads[l]) for l in range(L)]\nprint(cosines)",
        "a = grads[-1]\nfor B, g in zip(reversed(Bs), reversed(grads[:-1])):\n"
        "    print(F.cosine_similarity(a, g, eps=0.0).mean())\n    a = a @ B",
        "a = grads[-1].clone()\nfor l in reversed(range(len(grads) - 1)):\n"
        "    angles.append(np.dot(a, grads[l]) / (np.linalg.norm(a) * np.linalg.norm(grads[l])))\n"
        "    a = B[l].T @ a",
        "assert len(credits) == len(grads)\nfor l in range(L):\n    print(cos_sim(credits[l + 1], grads[l]))",
        "import walkback as wb\nwith wb.Tracer(net) as tracer:\n    trace = tracer.trace(x, y)\n"
        "for a, g in zip(trace.credits[1:], trace.grads):\n    print(cosine(a, g))",
        "loss.backward()\ncredits = [rule(h.detach()) for h in hidden]\nfor l in range(depth):\n"
        "    print(cosine(credits[l + 1], hidden[l].grad))",
        "deltas = []\nfor h in hidden:\n    deltas.append(feedback(h))\n"
        "grads = torch.autograd.grad(loss, hidden)\nfor layer in range(n_layers):\n"
        "    print(F.cosine_similarity(deltas[layer + 1], grads[layer], eps=0.0))",
        "c = F.cosine_similarity(credits[1:], grads[:-1], dim=-1, eps=0.0)",
        "cos = nn.CosineSimilarity(dim=1, eps=0.0)\nfor l in range(1, len(credits)):\n"
        "    print(l, cos(credits[l - 1], g[l]))",
        "upper, lower = credits[1:], grads[:-1]\nfor a, g in zip(upper, lower):\n    print(cosine(a, g))",
        "def measure(credits, grads):\n    if len(credits) != len(grads):\n        raise ValueError\n"
        "    for l, a in enumerate(credits[:-1]):\n        print(cosine(a, grads[l + 1]))",
        "for (l, g) in enumerate(grads[:-1]):\n    print(cosine(credits[l + 1], g))",
        "class M:\n    def angles(self):\n"
        "        return [cosine(self.credits[l + 1], self.grads[l]) for l in range(len(self.grads) - 1)]",
        "for l in range(len(grads) - 2, -1, -1):\n    print(cosine(credits[l + 1], grads[l]))",
    ],
}

CALM = {
    "P01": [
        "n = np.linalg.norm(W, ord=-2)",
        "def f(h, dim):\n    return h.norm(dim=dim)",
        "n = h.norm(dim=-1)",
        "n = h.norm(2, -1)",
        "n = h.norm(2, dim=-1)",
        "n = h.norm(-1, dim=1)",
        "n = h.norm()",
        "n = h.norm(1)",
        "n = torch.norm(h, dim=-1)",
        "n = torch.norm(h, 2, -1)",
        "n = torch.linalg.vector_norm(h, dim=-1)",
        "n = np.linalg.norm(h, axis=-1)",
        "n = F.normalize(h, dim=-1)",
        "n = self.norm(h)",
    ],
    "P02": [
        "def f(u, v):\n    n = u.norm() * v.norm()\n    if n < 1e-8:\n        return float('nan')\n"
        "    return (u @ v) / n\nprint(f(credit, grad))",
        "def f(u, v):\n    n = u.norm() * v.norm()\n    if n < 1e-8:\n"
        "        raise ValueError('no gradient')\n    return (u @ v) / n\nprint(f(credit, grad))",
        "d = {}\nd['eps'] = a.norm() + 1e-8\nd['n'] = a.norm() * g.norm()\nd['c'] = (a * g).sum() / d['n']",
        "w = w - lr * grad\nc = F.cosine_similarity(w, v)",
        "def hook(module, inputs, output):\n    kept.append(output)\nkept = []\n"
        "layer.register_forward_hook(hook)\nc = F.cosine_similarity(kept[0], other)",
        "v = F.normalize(torch.randn(3), dim=0)\nfor _ in range(9):\n    g = f(v)\n"
        "    v = g / (g.norm() + 1e-8)\nprint(torch.dot(v, g))",
        "def feedback_alignment(layer):\n    W, B = layer.weight.flatten(), layer.B.flatten()\n"
        "    return F.cosine_similarity(W, B, dim=0)",
        "u = F.normalize(images)\nv = F.normalize(texts)\nc = (u * v).sum(1)",
        "c = F.cosine_similarity(a, g, eps=0.0)",
        "c = F.cosine_similarity(a, g, 1, 1e-30)",
        "c = F.cosine_similarity(a, g, eps=eps)",
        "c = nn.CosineSimilarity(dim=1, eps=0.0)(a, g)",
        "c = F.cosine_similarity(text_embedding, image_embedding)",
        "c = F.cosine_similarity(F.normalize(a), F.normalize(g))",
        "g = F.normalize(grad)\na = F.normalize(a)\nc = F.cosine_similarity(a, g)",
        "c = sklearn.metrics.pairwise.cosine_similarity(a, g)",
        "cos = nn.CosineSimilarity()\nc = cos(query, key)",
        "c = (a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))",
    ],
    "P03": [
        "model = AutoModel.from_pretrained('m', torch_dtype=torch.bfloat16)\nloss.backward()",
        "kept = np.array(images, dtype=np.float16)",
        "n = g.bfloat16().norm(dim=1)",
        "x = images.half()",
        "model.half()\nwith torch.no_grad():\n    z = f(x)",
        "with torch.no_grad():\n    net.half()(x.half())",
        "loss.backward()\nwith torch.no_grad():\n    net.half()(x.half())",
        "@torch.inference_mode()\ndef f(net, x):\n    return net.half()(x.half())\nloss.backward()",
        "scaler = torch.amp.GradScaler()\n"
        "with torch.autocast('cuda', dtype=torch.float16):\n    loss = f(x)\nloss.backward()",
        "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss = f(x)\nloss.backward()",
        "with torch.autocast('cpu'):\n    loss.backward()",
        "model.to(torch.float32)\nloss.backward()",
    ],
    "P04": [
        "net.load_state_dict(s)\nB = torch.randn(3, 3)\nfinetune(net)\ntrain(net, B)",
        "net.load_state_dict(s)\nnn.init.normal_(net.head.weight)",
        "B = torch.randn(10, 64)\ntrain(model, B)",
        "ckpt = torch.load('m.pt')\nB = ckpt['B']",
        "ckpt = torch.load('m.pt')\nB = torch.empty(10, 64)\nB.copy_(ckpt['feedback'])",
        "def evaluate(model):\n    fresh_B = torch.randn(10, 64)\n    return fresh_B",
        "def null_of_measurement(model):\n    B = torch.randn(10, 64)\n    return B",
        "class DFA(nn.Module):\n    def __init__(self):\n        self.B = nn.Parameter(torch.randn(3, 3))\n"
        "rule.load_state_dict(torch.load('r.pt'))",
        "def evaluate(model):\n    noise = torch.randn(10, 64)\n    return noise",
        "def evaluate(model, x):\n    B = x.shape[0]\n    return B",
    ],
    "P06": [
        "class M:\n    def f(self, credits, grads):\n        self.c = []\n"
        "        for a, g in zip(credits, grads):\n            self.c.append(cosine(a, g))\n"
        "        return sum(self.c) / len(self.c)\n    def table(self):\n"
        "        return list(enumerate(self.c))",
        "c = {}\nfor name, p in net.named_parameters():\n    c[name] = cosine(a[name], p.grad)\n"
        "print(c, sum(c.values()) / len(c))",
        "print(layer_cosines.mean(0))",
        "print(np.mean([np.cos(w * t) for t in range(n_layers)]))",
        "cosines = [cosine(a, g) for a, g in zip(credits, grads)]\nprint(cosines, sum(cosines) / len(cosines))",
        "cosines = [cosine(a, g) for a, g in zip(credits, grads)]\nprint(np.mean(cosines))\n"
        "log({'per_layer': cosines})",
        "found = []\nfor x, y in loader:\n    found.append(cosine(credit(x), gradient(x)))\nprint(np.mean(found))",
        "loss = sum(mse(a, g) for a, g in zip(credits, grads)) / L",
        "per_layer = torch.stack([cosine(a, g) for a, g in zip(credits, grads)]).mean(1)",
        "total = [0.0] * L\nfor l, block in enumerate(model.blocks):\n    total[l] += cosine(block.a, block.b)",
        "def f():\n    cosines = [cosine(a, g) for a, g in zip(credits, grads)]\n    return cosines, np.mean(cosines)",
        "c = [cos(ai, bi).mean() for ai, bi in zip(texts, pictures)]\nprint(sum(c) / len(c))",
        "c = [cos(ai, gi) for ai, gi in zip(a, g)]\nprint(sum(c) / len(c))",  # rows of one layer
        "c = [cos(ai, gi).mean() for ai, gi in zip(credit_batches, g_batches)]\nprint(sum(c) / len(c))",
        "c = [cos(ai, gi).mean() for ai, gi in zip(a, g)]\nprint(c)\ngamma = sum(c) / len(c)",
        "found = []\nfor seed in range(5):\n    found.append(cos(a, g).mean())\nprint(sum(found) / len(found))",
        "total = 0\nfor l in range(L):\n    c = cosine(a[l], b[l])\n    print(l, c)\n    total += c\nprint(total / L)",
        "cosines = []\nfor l in range(L):\n    cosines += [cosine(a[l], b[l])]\nprint(cosines)",
        "n = []\nfor d, g in zip(deltas, gs):\n    n.append((d.norm() / g.norm()).mean())\nprint(np.mean(n))",
    ],
    "P07": [
        "fb = getattr(layer, 'feedback', None)",
        "bias = getattr(layer, 'bias', layer.weight)",
        "B = np.random.randn(10, 64)\nnp.savez('m.npz', W1=W1, B=B)",
        "def f(e, grad, B=None):\n    if B is None:\n        return grad @ W\n    return e @ B",
        "B = torch.randn(10, 64)\ntorch.save({'model': model.state_dict(), 'B': B}, 'm.pt')",
        "feedback = torch.randn(3, 3)\nckpt = {'net': net.state_dict()}\n"
        "ckpt['feedback'] = feedback\ntorch.save(ckpt, 'm.pt')",
        "class N(nn.Module):\n    def __init__(self):\n        self.register_buffer('B', torch.randn(3, 3))\n"
        "torch.save(N().state_dict(), 'm.pt')",
        "class N(nn.Module):\n    def __init__(self):\n        self.B = nn.Parameter(torch.randn(3, 3))\n"
        "torch.save(N().state_dict(), 'm.pt')",
        "torch.save(model.state_dict(), 'm.pt')",
        "B = torch.randn(10, 64)\ntorch.save(model, 'm.pt')",
        "bridge = Bridge()\ntorch.save({'net': net.state_dict(), 'bridge': bridge.state_dict()}, 'm.pt')",
        "if B is None:\n    raise ValueError('no feedback')\ncredit = e @ B",
        "a = default if B is None else e @ B",
        "B = ckpt.get('B', None)",
    ],
    "P08": [
        "def f(args):\n    if args.data == 'a':\n        x, y = get_batch(args.n)\n    else:\n"
        "        x, y = get_batch(args.n)\n    return cosine(credit(x, y), gradient(x, y))",
        "def f(train_sampler, probe_sampler, net):\n    x, y = train_sampler.sample(8)\n    net.fit(x, y)\n"
        "    x, y = probe_sampler.sample(8)\n    return cosine(credit(x, y), gradient(x, y))",
        "def f(net, x, y):\n    net.eval()\n    g = torch.autograd.grad(loss(net(x), y), h)\n"
        "    a = credit(net(x), y)\n    return cosine(a, g)",
        "def f(loader):\n    it = iter(loader)\n    try:\n        b = next(it)\n    except StopIteration:\n"
        "        it = iter(loader)\n        b = next(it)\n    return cosine(credit(b), reference(b))",
        "def gamma(loader):\n    x, y = next(iter(loader))\n    return cosine(credit(x, y), reference(x, y))",
        "def show(loader):\n    a = next(iter(loader))\n    b = next(iter(loader))\n    return a, b",
    ],
    "P09": [
        "for frozen, epochs in [(False, 100), (True, 100)]:\n    run(frozen=frozen, epochs=epochs)",
        "base = {'epochs': 100, 'lr': 0.1}\na = {**base, 'rule': 'dfa'}\nb = {**base, 'freeze_blocks': True}",
        "a = ['train.py', '--epochs', '50', '--lr', '1']\n"
        "b = ['train.py', '--epochs', '50', '--lr', '1', '--freeze-blocks']",
        "train(frozen=f, epochs=100)",
        "a = train(net, epochs=100)\nb = train(net, epochs=100, frozen=True)",
        "a = train(net, epochs=100)\nb = train(net, epochs=EPOCHS, frozen=True)",
        "for epochs in (10, 100):\n    train(net, epochs=epochs, frozen=True)\n    train(net, epochs=epochs)",
        "a = wb.RunSpec(epochs=10)\nc = wb.RunSpec(epochs=100)\nb = wb.RunSpec(scope='frozen', epochs=100)",
        "b = train(net, epochs=10, frozen=True)",
    ],
    "P10": [
        "net = resnet()\nfor x, y in train:\n    loss(net(x), y).backward()\n    opt.step()\n"
        "    with torch.no_grad():\n        print((net(x).argmax(1) == y).float().mean())",
        "class Net(nn.Module):\n    pass\nmodel = Net()\nprint((model(x).argmax(1) == y).sum())",
        "class A(L.Module):\n    def training_step(self, batch, i):\n        x, y = batch\n        net = self.net\n"
        "        self.log('acc', (net(x).argmax(1) == y).float().mean())\n        return loss(net(x), y)",
        "model = Net().eval()\nacc = (model(x).argmax(1) == y).float().mean()",
        "model = Net()\nmodel.train(False)\nacc = (model(x).argmax(1) == y).float().mean()",
        "model = Net()\nloss = f(model(x), y)\nloss.backward()\noptimizer.step()\nacc = (model(x).argmax(1) == y)",
        "def helper(model, x, y):\n    return (model(x).argmax(1) == y).float().mean()",
        "from model import net\ndef accuracy(net, x, y):\n    return (net(x).argmax(1) == y).float().mean()",
        "from model import net\nnet.eval()\nacc = (net(x).argmax(1) == y).float().mean()",
        "from model import net\nprint(net(x).shape)",
        "from model import net\nF.cross_entropy(net(x), y).backward()\noptimizer.step()\nprint(h.grad.abs().max())",
        "from model import Net\ndef accuracy(net, x, y):\n    return (net(x).argmax(1) == y).float().mean()",
        "model = Net()\nprint(model(x).shape)",
        "model = Net()\nreport = wb.diagnose(model, batches)",
    ],
    "P11": [
        "mean = F.normalize(h, dim=1).mean(0)\nprint(mean.norm())",
        "h = F.layer_norm(h, (8,), weight, bias)\nprint(h.norm(dim=1))",
        "print(h.norm(dim=1).mean())\nu = F.normalize(h)",
        "u = F.normalize(h)\nh = model.embed(x)\nprint(h.norm(dim=1))",
        "h = F.normalize(h)\nh = block(h)\nprint(h.norm(dim=1))",
        "r = h / other.norm(dim=1)\nprint(r.norm())",
        "weights = w / w.sum()\nprint(weights.norm())",
        "v = v / v.norm()",
        "x = torch.randn(4, 8)\nx = x / x.norm(2, -1, keepdim=True)\nprint(x.norm(dim=-1), x.norm(dim=-1).max())\n"
        "assert x.norm(dim=-1).allclose(torch.ones(4))",
        "u = F.normalize(3 * torch.rand(4, 8))\nprint(u.norm(dim=-1))",
        "for x, y in loader:\n    x = F.normalize(x.flatten(1))\n    print(x.norm(dim=1))",
        "v = f(x)\nfor _ in range(9):\n    v = v / (v.norm() + 1e-9)",
    ],
    "P13": [
        "loss = F.cross_entropy(z, y)\nloss.backward()\nprint(layer.weight.grad.norm(dim=1))",
        "criterion = nn.CrossEntropyLoss(reduction='sum')\ng = torch.autograd.grad(criterion(z, y), h)[0]\n"
        "print(g.norm(dim=1).mean())",
        "loss = F.cross_entropy(z, y, reduction='sum')\n"
        "(g,) = torch.autograd.grad(loss, h)\nprint(g.norm(dim=1).mean())",
        "(g,) = torch.autograd.grad(F.cross_entropy(z, y), h)\nprint((g * len(x)).norm(dim=1).mean())",
        "(g,) = torch.autograd.grad(F.cross_entropy(z, y), h)\nprint(g.norm(dim=1).mean() * batch_size / 128)",
        "(g,) = torch.autograd.grad(F.cross_entropy(z, y), h)\nc = (a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))",
        "loss = F.cross_entropy(z, y)\nloss.backward()\nfor p in model.parameters():\n    print(p.grad.norm())",
    ],
    "P14": [
        "frame = frame.sort_values('accuracy')",
        "x = torch.cat([x[y == c] for c in range(10)])[torch.randperm(100)]\ng = torch.autograd.grad(loss, h)",
        "x = x[torch.randperm(len(x))]",
        "ranks = scores.argsort()\nx = x[ranks]",
        "classes = np.sort(np.unique(labels))",
        "best = sorted(results.items(), key=lambda kv: kv[1])",
        "data = ImageFolder('train')\nloader = DataLoader(data, batch_size=128, shuffle=True)",
        "data = ImageFolder('train')\nloader = DataLoader(data, 128, sampler=RandomSampler(data))",
        "loader = DataLoader(CIFAR10('data', train=False), batch_size=128)",
    ],
    "P15": [
        "c = [cosine(a, g) for a, g in zip(credits, grads)]\nprint(c)",
        "c = [cosine(a, g) for a, g in zip(credits[1:], grads[1:])]\nprint(c)",
        "c = [cosine(a, g) for a, g in zip(credits[:-1], grads[:-1])]\nprint(c)",
        # neighbours of one list
        "c = [cosine(u, v) for u, v in zip(grads[1:], grads[:-1])]\nprint(c)",
        "c = [cosine(grads[l + 1], grads[l]) for l in range(len(grads) - 1)]\nprint(c)",
        "up, down = grads[1:], grads[:-1]\nfor u, v in zip(up, down):\n    print(cosine(u, v))",
        # one more in front
        "grads = torch.autograd.grad(loss, [x, *hidden])\nfor a, g in zip(credits, grads[1:]):\n"
        "    print(cosine(a, g))",
        "grads = torch.autograd.grad(loss, [x, *hidden])\nfor a, g in zip(credits[:-1], grads[1:]):\n"
        "    print(cosine(a, g))",
        "grads = torch.autograd.grad(loss, inputs=[x] + hidden)\nfor a, g in zip(credits[:-1], grads[1:]):\n"
        "    print(cosine(a, g))",
        "for l in range(1, L):\n    print(cosine(credits[l], grads[l - 1]))",
        "credits = [layer.delta for layer in layers]\ngrads = [layer.grad for layer in layers[1:]]\n"
        "for a, g in zip(credits, grads):\n    print(cosine(a, g))",
        "for l in range(len(credits) - 1):\n    print(cosine(credits[l], layers[l + 1].grad))",
        "if first:\n    grads = torch.autograd.grad(loss, hidden)\nelse:\n"
        "    grads = torch.autograd.grad(loss, hidden[1:])\ncredits = [rule(h) for h in hidden]\n"
        "for a, g in zip(credits, grads):\n    print(cosine(a, g))",
        "for a, g in zip(credits[1:], grads):\n    print(cosine(a, g))",
        "for l in range(L):\n    print(cosine(credits[l], grads[l + 1]))",
        "for l in range(len(credits) - 1):\n    print(cosine(credits[l + 1], grads[l]))",
        "grads = torch.autograd.grad(loss, hidden)\ncredits = [rule(h) for h in hidden[1:]]\n"
        "for a, g in zip(credits, grads[1:]):\n    print(cosine(a, g))",
        "grads = torch.autograd.grad(loss, hidden[1:])\ncredits = [rule(h) for h in hidden]\n"
        "for a, g in zip(credits[1:], grads):\n    print(cosine(a, g))",
        "grads = torch.autograd.grad(loss, hidden[1:])\ncredits = [rule(h) for h in hidden]\n"
        "for l in range(len(grads) - 1):\n    print(cosine(credits[l + 1], grads[l]))",
        # carried by one layer
        "grads = torch.autograd.grad(loss, hidden)\ncredits = [g @ B for g, B in zip(grads[1:], Bs)]\n"
        "for a, g in zip(credits, grads):\n    print(cosine(a, g))",
        "grads = torch.autograd.grad(loss, hidden)\ncredits = [g @ B for g in grads]\nfor l in range(L):\n"
        "    print(cosine(credits[l + 1], grads[l]))",
        "a = grads[-1]\nfor B, g in zip(reversed(Bs), reversed(grads[:-1])):\n    a = a @ B\n"
        "    print(F.cosine_similarity(a, g, eps=0.0).mean())",
        "a = grads[-1]\nfor B, g in zip(reversed(Bs), reversed(grads)):\n"
        "    print(F.cosine_similarity(a, g, eps=0.0).mean())\n    a = a @ B",
        "last = grads[-1]\nfor g in reversed(grads[:-1]):\n    print(cosine(last, g))\n    last = g",
        # forward and backward weights
        "for l in range(len(W) - 1):\n    print(cosine(B[l], W[l + 1]))",
        "class Net:\n    def angles(self):\n        for idx in range(len(self.synapses) - 1):\n"
        "            print(cosine(self.B_syn[idx].weight.data, self.synapses[idx + 1].weight.data))",
        # in time
        "for t in range(len(grads) - 1):\n    print(cosine(updates[t + 1], grads[t]))",
        "for step in range(len(grads) - 1):\n    print(cosine(credits[step + 1], grads[step]))",
        "for g, p in zip(grads[1:], prev_grads[:-1]):\n    print(cosine(g, p))",
        "c = F.cosine_similarity(grads[:, 1:], credits[:, :-1], dim=-1, eps=0.0)",
        # on purpose
        "own = [cosine(credits[l], grads[l]) for l in range(L)]\n"
        "above = [cosine(credits[l], grads[l + 1]) for l in range(len(credits) - 1)]\nprint(own, above)",
        "shifted = [cosine(a, g) for a, g in zip(credits[1:], grads[:-1])]",
        "def neighbouring(credits, grads):\n    return [cosine(a, g) for a, g in zip(credits[1:], grads[:-1])]",
        # all pairs
        "for i in range(len(grads)):\n    for j in range(i + 1, len(grads)):\n"
        "        print(cosine(grads[i], grads[j]))",
        # states and inputs
        "for l in range(len(hidden) - 1):\n    print(cosine(hidden[l + 1], hidden[l]))",
        "for l, (h, d) in enumerate(zip(hidden[1:], deltas[:-1])):\n    print(cosine(h, d))",
        "for l in range(len(grads) - 1):\n    updates = lr * acts[l].T @ credits[l + 1]\n"
        "    print(updates.norm() / grads[l].norm())",
        "for l in range(len(grads) - 1):\n    a = credits[l + 1]\n    a = a @ B[l]\n    print(cosine(a, grads[l]))",
        "for l in range(len(grads) - 1):\n    a = credits[l + 1]\n    a @= B[l]\n    print(cosine(a, grads[l]))",
        "for l in range(len(grads) - 1):\n    print(cosine(credits[l + 1] @ B[l], grads[l]))",
        "for l, a in enumerate(credits[1:], 1):\n    print(cosine(a, grads[l]))",
        "for l, a in enumerate(credits[1:], start=1):\n    print(cosine(a, grads[l]))",
        "for a, g in zip(reversed(credits[1:]), reversed(grads)):\n    print(cosine(a, g))",
        "for got, want in zip(grads[1:], expected_grads[1:]):\n"
        "    print(cosine(got.double().flatten(), want.flatten()))",
        "for a, g in zip(credits[1:], grads, strict=True):\n    print(cosine(a, g))",
    ],
}


@pytest.mark.parametrize(("code", "snippet"), [(c, s) for c, many in TRIPS.items() for s in many])
def test_finds(code: str, snippet: str, tmp_path: Path) -> None:
    assert code in codes(snippet, tmp_path)


@pytest.mark.parametrize(("code", "snippet"), [(c, s) for c, many in CALM.items() for s in many])
def test_leaves_alone(code: str, snippet: str, tmp_path: Path) -> None:
    assert codes(snippet, tmp_path) == []


def test_every_detector_has_both() -> None:
    from walkback.pitfalls import DETECTORS

    assert set(TRIPS) == set(CALM) == set(DETECTORS)


# -- our own code --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["src", "tests", "examples", "benchmarks", "scripts", "docs"])
def test_our_own_code_has_no_findings(folder: str) -> None:
    found = wb.lint(ROOT / folder)
    assert (found.findings, found.problems) == ((), ()), str(found)


def test_what_pages_call_right_has_no_findings(tmp_path: Path) -> None:
    import re

    fixes = [
        re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        for page in ("README.md", "docs/custom-networks.md", "docs/rules.md", "docs/pitfalls/index.md")
    ]
    for i, blocks in enumerate(fixes):
        (tmp_path / f"page{i}.py").write_text("\n".join(blocks), encoding="utf-8")
    found = wb.lint(tmp_path)
    assert (found.files, found.findings) == (4, ()), str(found)


# The other pages show it with Walkback's own functions, or across runs.
SHOWN_IN_A_SCRIPT = (1, 2, 3, 7, 11, 13, 14, 15)


def test_the_wrong_examples_of_the_pages_are_found(tmp_path: Path) -> None:
    import re

    for entry in pitfalls.CATALOGUE:
        if entry.number not in SHOWN_IN_A_SCRIPT:
            continue
        text = (ROOT / entry.page).read_text(encoding="utf-8")
        assert entry.code in codes("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), tmp_path, head="")


EVALUATION = """
model = ResMLP()
model.load_state_dict(torch.load("dfa.pt"))
Bs = [torch.randn(10, 256) for _ in range(5)]

def gamma(model, x, y):
    logits, hidden = model(x, return_hidden=True)
    grads = torch.autograd.grad(F.cross_entropy(logits, y), hidden)
    e = logits.softmax(1) - F.one_hot(y, 10)
    cosines = []
    for B, g in zip(Bs, grads):
        cosines.append(F.cosine_similarity(e @ B, g).mean())
        print(g.norm(-1), g.norm(dim=1).mean())
    return sum(cosines) / len(cosines)
"""


def test_a_whole_evaluation_that_gets_everything_wrong(tmp_path: Path) -> None:
    assert codes(EVALUATION, tmp_path) == ["P04", "P10", "P02", "P01", "P13", "P06"]


# -- places, comments, files ---------------------------------------------------------------------------------------


def test_a_finding_says_where_why_and_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "my eval.py"
    script.write_text("import torch\n\n\ndef f(h):\n    return h.norm(-1)\n", encoding="utf-8")
    (found,) = wb.lint(script).findings
    assert (found.code, found.path, found.line, found.cell) == ("P01", str(script), 5, None)
    assert str(found).startswith(f"{script}:5: P01 -1 is taken for p")
    assert found.fix == "write dim=-1"
    assert found.page == "docs/pitfalls/01-negative-norm.md"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("n = g.half().norm(-1)", ["P01", "P03"]),
        ("n = g.half().norm(-1)  # walkback: ignore[P01]", ["P03"]),
        ("n = g.half().norm(-1)  # walkback: ignore[P01, P03] as the paper did", []),
        ("n = g.half().norm(-1)  # walkback: ignore", []),
        ("n = g.half().norm(-1)  # noqa  walkback: ignore[p01]", ["P01", "P03"]),
        ("n = g.half().norm(-1)  # walkback: ignore[P02]", ["P01", "P03"]),
        ("n = '# walkback: ignore', g.half().norm(-1)", ["P01", "P03"]),
        ("n = g.half().norm(\n    -1,  # walkback: ignore[P01]\n)", ["P03"]),
    ],
)
def test_a_comment_silences_what_it_names(line: str, left: list[str], tmp_path: Path) -> None:
    assert codes(line, tmp_path) == left


def notebook(path: Path, *cells: str) -> Path:
    written = [{"cell_type": "code", "source": c.splitlines(keepends=True)} for c in cells]
    text = {"cell_type": "markdown", "source": ["h.norm(-1)"]}
    path.write_text(json.dumps({"cells": [text, *written], "nbformat": 4}), encoding="utf-8")
    return path


def test_a_comment_silences_anywhere_in_its_statement(tmp_path: Path) -> None:
    code = "c = (a * g).sum() / (\n    a.norm() * g.norm() + 1e-8\n){}\n"
    assert codes(code.format(""), tmp_path) == ["P02"]
    assert codes(code.format("  # walkback: ignore[P02]"), tmp_path) == []


def test_files_linted_together_tell_which_helper_compares_gradients(tmp_path: Path) -> None:
    helper = "def similar(u, v):\n    return (u @ v) / (u.norm() * v.norm() + 1e-8)\n"
    (tmp_path / "tools.py").write_text(helper, encoding="utf-8")
    assert wb.lint(tmp_path).findings == ()
    caller = tmp_path / "evaluate.py"
    caller.write_text("from .tools import similar\nprint(similar(words[0], words[1]))\n", encoding="utf-8")
    assert wb.lint(tmp_path).findings == ()
    caller.write_text("from .tools import similar\nprint(similar(credit, grad))\n", encoding="utf-8")
    (found,) = wb.lint(tmp_path).findings
    assert (found.code, Path(found.path).name, found.line) == ("P02", "tools.py", 2)


@pytest.mark.parametrize(("part", "found"), [("nn.Linear(2, 2)", []), ("nn.Dropout(0.1)", ["P10"])])
def test_files_linted_together_tell_which_network_has_no_mode(part: str, found: list[str], tmp_path: Path) -> None:
    layers = f"import torch.nn as nn\n\n\nclass Layer(nn.Module):\n    def __init__(self):\n        self.f = {part}\n"
    (tmp_path / "layers.py").write_text(layers, encoding="utf-8")
    (tmp_path / "nets.py").write_text("from layers import Layer\n\n\nclass Net(Layer):\n    pass\n", encoding="utf-8")
    script = tmp_path / "evaluate.py"
    script.write_text(
        "import torch\nfrom nets import Net\n\nmodel = Net()\nprint((model(x).argmax(1) == y).sum())\n",
        encoding="utf-8",
    )
    assert [f.code for f in wb.lint(tmp_path).findings] == found
    assert [f.code for f in wb.lint(script).findings] == ["P10"]  # alone it can't be told


def test_a_function_is_asked_once_however_many_draws_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from walkback.pitfalls import p04_fresh_feedback as p04

    asked, before = [], p04._loads
    monkeypatch.setattr(p04, "_loads", lambda script, node: asked.append(node) or before(script, node))
    draws = "".join(f"B{i} = torch.randn(3, 3)\n" for i in range(50))
    assert codes("state = torch.load('m.pt')\n" + draws, tmp_path) == ["P04"] * 50
    assert len(asked) == len(set(asked))


def test_notebooks_are_read_cell_by_cell(tmp_path: Path) -> None:
    cells = (
        "%matplotlib inline\nimport torch\n!pip list",
        "%%bash\nls -l; rm -",
        "if True:\n    %time f()\n\nn = h.norm(-1)",
    )
    (found,) = wb.lint(notebook(tmp_path / "a.ipynb", *cells)).findings
    assert (found.cell, found.line) == (4, 4)
    assert f"{tmp_path / 'a.ipynb'}:cell 4:4: P01" in str(found)


def test_what_can_not_be_read_is_named_and_the_rest_is_scanned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text("n = h.norm(-1)\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n    pass\n", encoding="utf-8")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "null.py").write_bytes(b"x = 1\x00\n")
    (tmp_path / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000, encoding="utf-8")
    notebook(tmp_path / "bad.ipynb", "x = 1", "y = (")
    (tmp_path / "no.ipynb").write_text("[1, 2", encoding="utf-8")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.py").write_text("n = h.norm(-1)\n", encoding="utf-8")
    assert cli.run(["lint", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert f"{tmp_path / 'good.py'}:1: P01" in told.out
    assert "1 finding in 1 file; 6 files could not be read" in told.out
    assert f"error: {tmp_path / 'broken.py'}:2: not Python: invalid syntax" in told.err
    assert f"error: {tmp_path / 'bad.ipynb'}:1: not Python in cell 3: '(' was never closed" in told.err
    for name in ("latin.py", "null.py", "deep.py", "no.ipynb"):
        assert f"error: {tmp_path / name}" in told.err
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [("good.py", "n = h.norm(dim=-1)\n", 0), ("bad.py", "n = h.norm(-1)\n", 1), ("broken.py", "n = (\n", 2)],
)
def test_exit_codes(name: str, text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert cli.run(["lint", str(tmp_path / name)]) == code
    assert cli.run(["lint", str(tmp_path / name), "--json"]) == code
    printed = capsys.readouterr().out
    said = {
        0: "nothing found in 1 file\n",
        1: "1 finding in 1 file;",
        2: "nothing was checked; 1 file could not be read\n",
    }
    assert said[code] in printed
    assert ("nothing found" in printed) is (code == 0)
    found = json.loads(printed[printed.index("{") :])
    assert (len(found["findings"]), len(found["problems"])) == (int(code == 1), int(code == 2))
    assert found["files"] == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("gone", "there is none at"), ("notes.txt", "Expected a .py or .ipynb file"), ("empty", "but it has none")],
)
def test_a_path_with_nothing_to_scan_is_exit_2(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    assert cli.run(["lint", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err


def test_several_paths_are_scanned_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "more").mkdir()
    for name in ("b.py", "a.py", "more/c.py"):
        (tmp_path / name).write_text("n = h.norm(-1)\n", encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("b.py", "more", "a.py", "more/c.py")]
    assert cli.run(["lint", *paths, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"files", "findings", "problems"}
    assert [Path(f["path"]).name for f in found["findings"]] == ["b.py", "c.py", "a.py"], "each file once"
    assert found == json.loads(json.dumps(wb.lint(*paths).to_dict()))
    assert cli.run(["lint", paths[0], str(tmp_path / "gone")]) == 2
    assert "there is none at" in capsys.readouterr().err


def test_linting_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("n = h.norm(-1)\n", encoding="utf-8")
    code = f"import sys; from walkback import cli; cli.run(['lint', {str(tmp_path)!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.splitlines()[-1] == "False"
