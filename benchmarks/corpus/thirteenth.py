"""An eleventh unseen set, residual networks by hand and of libraries; sites were written before a reading."""

# ruff: noqa: C408, D101, D106, E501, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib
import math

import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from small import Att, C, D, Mlp, collector, generator, img, inputs, ser, tokens, vec
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

SET = "eleventh set"
ALL, case = collector(SET)


def nodes():
    """Return 6 nodes, which are the samples, with a normalised adjacency."""
    x, y = vec()
    raw = torch.rand(6, 6, generator=generator(121), dtype=torch.float64)
    return {"x": x, "adj": raw / raw.sum(1, keepdim=True)}, y


def noisy():
    """Return vectors and a level of noise each."""
    x, y = vec()
    return {"x": x, "t": torch.linspace(0, 1, 6, dtype=torch.float64)}, y


def channels(h):
    """Return the norms of states that are (B, d) or (B, T, d), averaged over tokens, or whole pictures."""
    return h.norm(dim=-1).mean(1) if h.ndim == 3 else h.flatten(1).norm(dim=1)


# -- transformers ----------------------------------------------------------------------------------------------


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(D, 24), "act": nn.GELU(), "c_proj": nn.Linear(24, D)})
        self.mlpf = lambda x: self.mlp["c_proj"](self.mlp["act"](self.mlp["c_fc"](x)))

    def forward(self, x, kv=None, use_cache=False):
        q, k, v = self.attn(self.ln_1(x)).split(D, dim=2)
        if kv is not None:
            k, v = torch.cat([kv[0], k], 1), torch.cat([kv[1], v], 1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=kv is None))
        x = x + self.mlpf(self.ln_2(x))
        return (x, (k, v)) if use_cache else (x, None)


@case("minGPT with a cache: ModuleDict of wte, wpe, h, ln_f; weights tied; blocks return (x, None)", tokens, "mean")
class MinGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(20, D),
                wpe=nn.Embedding(16, D),
                drop=nn.Dropout(0.1),
                h=nn.ModuleList([GptBlock() for _ in range(3)]),
                ln_f=nn.LayerNorm(D),
            )
        )
        self.lm_head = nn.Linear(D, 20, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, past=None):
        pos = torch.arange(idx.shape[1]).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        mark(x)
        for i, block in enumerate(self.transformer.h):
            x, _ = block(x, None if past is None else past[i])
            mark(x)
        return self.lm_head(self.transformer.ln_f(x))


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) > self.p
        return x * keep / (1 - self.p)


class ScaledBlock(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.attn, self.mlp, self.drop_path = Att(D), Mlp(D), DropPath(p)
        self.ls1, self.ls2 = nn.Parameter(1e-1 * torch.ones(D)), nn.Parameter(1e-1 * torch.ones(D))

    def forward(self, x):
        x = x + self.drop_path(self.ls1 * self.attn(x))
        return x + self.drop_path(self.ls2 * self.mlp(x))


@case("DeiT III by hand: class, distillation and register tokens, LayerScale, drop path; two heads averaged", ser,
      [0, 1])  # fmt: skip
class Deit(nn.Module):
    def __init__(self, depth=3, registers=2):
        super().__init__()
        self.patch_embed = nn.Linear(6, D)
        self.cls_token, self.dist_token = (nn.Parameter(torch.randn(1, 1, D)) for _ in range(2))
        self.reg_token = nn.Parameter(torch.randn(1, registers, D))
        self.pos_embed = nn.Parameter(torch.randn(1, 7, D) * 0.02)
        self.blocks = nn.ModuleList([ScaledBlock(0.1 * i / depth) for i in range(depth)])
        self.norm, self.head, self.head_dist = nn.LayerNorm(D), nn.Linear(D, C), nn.Linear(D, C)

    def forward(self, x):
        x = self.patch_embed(x) + self.pos_embed
        tokens = [t.expand(len(x), -1, -1) for t in (self.cls_token, self.dist_token, self.reg_token)]
        x = torch.cat([*tokens, x], 1)
        mark(x)
        for block in self.blocks:
            x = block(x)
            mark(x)
        x = self.norm(x)
        a, b = self.head(x[:, 0]), self.head_dist(x[:, 1])
        return (a, b) if self.training else (a + b) / 2


@case("post-norm written out with four lists: x = n1(x + attn(x)), x = n2(x + ff(x))", ser, "mean")
class PostNormLists(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.emb = nn.Linear(6, D)
        self.attentions = nn.ModuleList([nn.MultiheadAttention(D, 2, batch_first=True) for _ in range(depth)])
        self.ffs = nn.ModuleList([nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, D)) for _ in range(depth)])
        self.norms_1 = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])
        self.norms_2 = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])
        self.classifier = nn.Linear(D, C)

    def forward(self, x):
        h = self.emb(x)
        mark(h)
        for attn, n1, ff, n2 in zip(self.attentions, self.norms_1, self.ffs, self.norms_2):
            h = n1(attn(h, h, h, need_weights=False)[0] + h)
            mark(h)
            h = n2(ff(h) + h)
            mark(h)
        return self.classifier(h.mean(dim=1))


@case("universal transformer: one block, a time embedding added before each step", ser, "mean")
class Universal(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.enter, self.time = nn.Linear(6, D), nn.Parameter(torch.randn(steps, D) * 0.3)
        self.attn, self.mlp, self.steps, self.out = Att(D), Mlp(D), steps, nn.Linear(D, C)

    def block(self, h):
        h = h + self.attn(h)
        mark(h)
        h = h + self.mlp(h)
        mark(h)
        return h

    def forward(self, x):
        h = self.enter(x)
        mark(h)
        for i in range(self.steps):
            h = self.block(h + self.time[i])
        return self.out(h.mean(1))


@case("universal transformer: one module that is called four times, a time embedding added before each", ser, "mean")
class UniversalModule(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.enter, self.time = nn.Linear(6, D), nn.Embedding(steps, D)
        self.block, self.steps, self.out = ScaledBlock(0.0), steps, nn.Linear(D, C)

    def forward(self, x):
        h = self.enter(x) + self.time(torch.tensor(0))
        mark(h)
        for i in range(self.steps):
            h = self.block(h)
            mark(h)
            h = h + self.time(torch.tensor(i + 1)) if i + 1 < self.steps else h
        return self.out(h.mean(1))


class Routed(nn.Module):
    """Mixture of depths: the block sees the tokens of the highest weights."""

    def __init__(self, capacity=3):
        super().__init__()
        self.router, self.block, self.capacity = nn.Linear(D, 1), Mlp(D), capacity

    def forward(self, x):
        weights = self.router(x).squeeze(-1)
        top, index = weights.topk(self.capacity, dim=1)
        index = index.unsqueeze(-1).expand(-1, -1, D)
        return x.scatter_add(1, index, torch.sigmoid(top).unsqueeze(-1) * self.block(x.gather(1, index)))


@case("mixture of depths: every second layer sees three tokens, its outputs are scattered back", ser, "mean")
class MixtureOfDepths(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, D)
        self.layers = nn.ModuleList([Routed() if i % 2 else ScaledBlock(0.0) for i in range(4)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, C)

    def forward(self, x):
        h = self.embed(x)
        mark(h)
        for layer in self.layers:
            h = layer(h)
            mark(h)
        return self.head(self.norm(h).mean(1))


@case("early exits: a head at every layer, all logits returned, the last first", ser, 0)
class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cls = nn.Linear(6, D), nn.Parameter(torch.randn(D))
        self.encoder = nn.ModuleList([ScaledBlock(0.0) for _ in range(3)])
        self.exits = nn.ModuleList([nn.Sequential(nn.LayerNorm(D), nn.Linear(D, C)) for _ in range(3)])

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), 1, D), self.embed(x)], 1)
        mark(h)
        every = []
        for layer, leave in zip(self.encoder, self.exits):
            h = layer(h)
            mark(h)
            every.append(leave(h[:, 0]))
        return every[-1], every[:-1]


class Lora(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features)
        for p in base.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + 0.5 * self.b(self.a(x))


@case("LoRA on frozen blocks: every linear layer is a base and two small ones; the stem is frozen", ser, "mean")
class LoraNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, D).requires_grad_(False)
        self.blocks = nn.ModuleList([ScaledBlock(0.0) for _ in range(3)])
        for block in self.blocks:
            block.attn.q, block.attn.o = Lora(block.attn.q), Lora(block.attn.o)
            block.mlp.a = Lora(block.mlp.a)
        self.head = nn.Linear(D, C)

    def forward(self, x):
        h = self.stem(x)
        mark(h)
        for block in self.blocks:
            h = block(h)
            mark(h)
        return self.head(h.mean(1))


class MarkedBlock(ScaledBlock):
    def forward(self, x):
        x = super().forward(x)
        mark(x)
        return x


@case("checkpoint_sequential over a Sequential of blocks in two segments", ser, "mean")
class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, D), nn.Linear(D, C)
        self.blocks = nn.Sequential(*[MarkedBlock(0.0) for _ in range(4)])

    def forward(self, x):
        h = self.stem(x)
        mark(h)
        return self.head(checkpoint_sequential(self.blocks, 2, h, use_reentrant=False).mean(1))


@case("a transformer of (T, B, d) by hand: positions added, the last step is read", ser,
      lambda h: h[-1].norm(dim=-1))  # fmt: skip
class TimeFirst(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.n1, self.n2 = nn.MultiheadAttention(D, 2), nn.LayerNorm(D), nn.LayerNorm(D)
            self.ff = nn.Sequential(nn.Linear(D, 24), nn.GELU(), nn.Linear(24, D))

        def forward(self, src):
            z = self.n1(src)
            src = src + self.attn(z, z, z)[0]
            return src + self.ff(self.n2(src))

    def __init__(self):
        super().__init__()
        self.inp, self.pos = nn.Linear(6, D), nn.Parameter(torch.randn(7, 1, D))
        self.layers, self.dec = nn.ModuleList([self.Layer() for _ in range(3)]), nn.Linear(D, C)

    def forward(self, x):
        h = self.inp(x.transpose(0, 1)) * math.sqrt(D) + self.pos
        mark(h)
        for layer in self.layers:
            h = layer(h)
            mark(h)
        return self.dec(h[-1])


class CrossSelf(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross, self.latent = nn.MultiheadAttention(D, 2, batch_first=True), Mlp(D)
        self.norm_q, self.norm_kv, self.attn = nn.LayerNorm(D), nn.LayerNorm(D), Att(D)

    def forward(self, latents, data):
        z, kv = self.norm_q(latents), self.norm_kv(data)
        latents = latents + self.cross(z, kv, kv, need_weights=False)[0]
        latents = latents + self.attn(latents)
        return latents + self.latent(latents)


@case("Perceiver: learned latents read the data in every layer, and are averaged", ser, "mean")
class Perceiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.data, self.latents = nn.Linear(6, D), nn.Parameter(torch.randn(4, D))
        self.layers, self.to_logits = nn.ModuleList([CrossSelf() for _ in range(3)]), nn.Linear(D, C)

    def forward(self, x):
        data = self.data(x)
        z = self.latents.unsqueeze(0).repeat(len(x), 1, 1)
        mark(z)
        for layer in self.layers:
            z = layer(z, data)
            mark(z)
        return self.to_logits(z.mean(1))


class FusedBlock(nn.Module):
    """Adds in its norm: takes and returns (hidden, residual), the residual in a dict."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, hidden, residual):
        residual = hidden if residual is None else hidden + residual
        mark(residual)
        a, b = self.up(self.norm(residual)).chunk(2, -1)
        return self.down(F.silu(a) * b), residual


@case("fused add and norm: blocks hand on branch and residual, the final norm adds the last one", ser, "mean")
class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.layers = nn.Linear(6, D), nn.ModuleList([FusedBlock() for _ in range(4)])
        self.norm_f, self.head = nn.LayerNorm(D), nn.Linear(D, C)

    def forward(self, x):
        hidden, residual = self.enter(x), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        residual = hidden + residual
        mark(residual)
        return self.head(self.norm_f(residual).mean(1))


# -- steps of equations ----------------------------------------------------------------------------------------


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D + 1, 24), nn.Tanh(), nn.Linear(24, D))

    def forward(self, t, h):
        return self.net(torch.cat([h, h.new_full((len(h), 1), t)], 1))


@case("neural ODE by Euler steps: one field f(t, h), h = h + dt * f(t, h)", vec)
class Euler(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.enter, self.func, self.leave, self.steps = nn.Linear(6, D), Field(), nn.Linear(D, C), steps

    def forward(self, x):
        h = self.enter(x)
        mark(h)
        dt = 1.0 / self.steps
        for i in range(self.steps):
            h = h + dt * self.func(i * dt, h)
            mark(h)
        return self.leave(h)


@case("neural ODE by the classical Runge-Kutta rule: four calls of one field a step", vec)
class RungeKutta(nn.Module):
    def __init__(self, steps=3):
        super().__init__()
        self.enter, self.func, self.leave, self.steps = nn.Linear(6, D), Field(), nn.Linear(D, C), steps

    def forward(self, x):
        h, dt = self.enter(x), 0.5
        mark(h)
        for i in range(self.steps):
            t = i * dt
            k1 = self.func(t, h)
            k2 = self.func(t + dt / 2, h + dt / 2 * k1)
            k3 = self.func(t + dt / 2, h + dt / 2 * k2)
            k4 = self.func(t + dt, h + dt * k3)
            h = h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            mark(h)
        return self.leave(h)


class FilmBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.film = nn.LayerNorm(D, elementwise_affine=False), nn.Linear(D, 2 * D)
        self.fc1, self.fc2 = nn.Linear(D, 24), nn.Linear(24, D)

    def forward(self, h, cond):
        scale, shift = self.film(F.silu(cond)).chunk(2, -1)
        return h + self.fc2(F.silu(self.fc1(self.norm(h) * (1 + scale) + shift)))


@case("denoiser of vectors: sinusoidal time, FiLM in every block, the input added at the end", noisy)
class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D))
        self.enter, self.blocks = nn.Linear(6, D), nn.ModuleList([FilmBlock() for _ in range(3)])
        self.norm, self.leave = nn.LayerNorm(D), nn.Linear(D, C)

    def forward(self, x, t):
        w = torch.exp(torch.arange(D // 2, dtype=x.dtype) * -0.5)
        cond = self.time(torch.cat([(t[:, None] * w).sin(), (t[:, None] * w).cos()], -1))
        h = self.enter(x)
        mark(h)
        for block in self.blocks:
            h = block(h, cond)
            mark(h)
        return self.leave(self.norm(h)) + x[:, :C]


@case("RevNet: two halves by turns; no one stream", vec)
class RevNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 2 * D), nn.Linear(2 * D, C)
        self.f, self.g = (nn.ModuleList([Mlp(D) for _ in range(3)]) for _ in range(2))

    def forward(self, x):
        a, b = self.enter(x).chunk(2, -1)
        for f, g in zip(self.f, self.g):
            a = a + f(b)
            b = b + g(a)
        return self.leave(torch.cat([a, b], -1))


# -- convolutional ---------------------------------------------------------------------------------------------


class PreActBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(cout), nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False))

    def forward(self, x):
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        out += shortcut
        return out


@case("pre-activation ResNet for CIFAR: the shortcut reads the activated input where shapes change", img)
class PreAct(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_planes, self.conv1 = 8, nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.layer1, self.layer2 = self._make_layer(8, 2, 1), self._make_layer(12, 2, 2)
        self.bn, self.linear = nn.BatchNorm2d(12), nn.Linear(12, C)

    def _make_layer(self, planes, blocks, stride):
        layers = []
        for s in [stride] + [1] * (blocks - 1):
            layers.append(PreActBlock(self.in_planes, planes, s))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x):
        out = self.conv1(x)
        mark(out)
        for stage in (self.layer1, self.layer2):
            for block in stage:
                out = block(out)
                mark(out)
        return self.linear(F.adaptive_avg_pool2d(F.relu(self.bn(out)), 1).flatten(1))


class Sr(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(d, d, 3, padding=1), nn.ReLU(True), nn.Conv2d(d, d, 3, padding=1))

    def forward(self, x):
        res = self.body(x).mul(0.1)
        res += x
        mark(res)
        return res


@case("EDSR: residual scaling in the blocks, a skip over the whole body, pooled to classes", img)
class Edsr(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1))
        self.body = nn.Sequential(*[Sr() for _ in range(3)], nn.Conv2d(8, 8, 3, padding=1))
        self.tail = nn.Linear(8, C)

    def forward(self, x):
        x = self.head(x)
        mark(x)
        res = self.body(x)
        res += x
        return self.tail(res.mean((2, 3)))


class LastConvNext(nn.Module):
    """Channels last."""

    def __init__(self, d):
        super().__init__()
        self.dw, self.norm = nn.Conv2d(d, d, 3, padding=1, groups=d), nn.LayerNorm(d)
        self.pw1, self.pw2, self.gamma = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.Parameter(torch.ones(d) * 0.1)

    def forward(self, x):
        z = self.dw(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + self.gamma * self.pw2(F.gelu(self.pw1(self.norm(z))))


@case("ConvNeXt with channels last between blocks: (B, H, W, C), two stages, a norm and a linear between", img)
class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.stages = nn.ModuleList([nn.Sequential(*[LastConvNext(d) for _ in range(2)]) for d in (8, 16)])
        self.down = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, C)

    def forward(self, x):
        h = self.stem(x).permute(0, 2, 3, 1)
        mark(h)
        for i, stage in enumerate(self.stages):
            for block in stage:
                h = block(h)
                mark(h)
            h = self.down(h) if i == 0 else h
        return self.head(self.norm(h.mean((1, 2))))


class FakeQuant(nn.Module):
    def forward(self, w):
        scale = w.detach().abs().max() / 7
        return w + ((w / scale).round() * scale - w).detach()


class QuantConv(nn.Conv2d):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.quant = FakeQuant()

    def forward(self, x):
        return self._conv_forward(x, self.quant(self.weight), self.bias)


class QuantBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv1, self.bn1 = QuantConv(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d)
        self.conv2, self.bn2 = QuantConv(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d)
        self.act = FakeQuant()

    def forward(self, x):
        z = self.act(F.relu(self.bn1(self.conv1(x))))
        return F.relu(x + self.bn2(self.conv2(z)))


@case("quantisation-aware ResNet: weights and activations rounded with a straight-through derivative", img)
class QuantNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(*[QuantBlock(8) for _ in range(3)])
        self.fc = nn.Linear(8, C)

    def forward(self, x):
        h = F.relu(self.stem(x))
        mark(h)
        for block in self.blocks:
            h = block(h)
            mark(h)
        return self.fc(h.mean((2, 3)))


class ConvStage(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv, self.bn, self.skip = nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.Conv2d(a, b, 1, 2)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)) + self.skip(x))


class TokenStage(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.block = nn.Sequential()
        self.a, self.f = Att(d), Mlp(d)

    def forward(self, x):
        x = x + self.a(x)
        return x + self.f(x)


@case("hybrid: residual convolutions, then transformer blocks on their pixels, two lists", img, channels)
class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList([ConvStage(8, 8), ConvStage(8, D)])
        self.blocks, self.head = nn.ModuleList([TokenStage(D) for _ in range(3)]), nn.Linear(D, C)

    def forward(self, x):
        h = self.stem(x)
        mark(h)
        for conv in self.convs:
            h = conv(h)
            mark(h)
        h = h.flatten(2).transpose(1, 2)
        for block in self.blocks:
            h = block(h)
            mark(h)
        return self.head(h.mean(1))


class WsConv(nn.Conv2d):
    def forward(self, x):
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-3)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


class NfBlock(nn.Module):
    def __init__(self, d, alpha, beta):
        super().__init__()
        self.alpha, self.beta, self.conv1, self.conv2 = alpha, beta, WsConv(d, d, 3, padding=1), WsConv(d, d, 1)
        self.gain = nn.Parameter(torch.ones(()) * 0.5)

    def forward(self, x):
        z = F.gelu(x) * self.beta
        return self.conv2(F.gelu(self.conv1(z))) * self.alpha * self.gain + x


@case("normaliser-free net: standardised weights, alpha and beta of each block, an activation at the end", img)
class NfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, blocks, v = WsConv(3, 8, 3, padding=1), [], 1.0
        for _ in range(3):
            blocks.append(NfBlock(8, 0.2, v**-0.5))
            v += 0.04
        self.body, self.final, self.fc = nn.Sequential(*blocks), WsConv(8, 12, 1), nn.Linear(12, C)

    def forward(self, x):
        h = self.stem(x)
        mark(h)
        for block in self.body:
            h = block(h)
            mark(h)
        return self.fc(F.gelu(self.final(h)).mean((2, 3)))


@case("SlowFast: two paths of convolutions with lateral connections; no one stream", inputs(122, 3, 4, 6, 6))
class SlowFast(nn.Module):
    def __init__(self):
        super().__init__()
        c3 = lambda a, b: nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.BatchNorm3d(b), nn.ReLU())
        self.slow, self.fast = (nn.ModuleList([c3(3, d), c3(2 * d, d), c3(2 * d, d)]) for d in (8, 8))
        self.fast = nn.ModuleList([c3(3, 8), c3(8, 8), c3(8, 8)])
        self.head = nn.Linear(16, C)

    def forward(self, x):
        slow, fast = x[:, :, ::2], x
        for i, (s, f) in enumerate(zip(self.slow, self.fast)):
            fast = f(fast)
            slow = s(slow)
            slow = torch.cat([slow, fast[:, :, ::2]], 1) if i < 2 else slow
        return self.head(torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1))


# -- graphs ----------------------------------------------------------------------------------------------------


class Gen(nn.Module):
    def __init__(self, d=D):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x, adj):
        return self.mlp(x + adj @ F.relu(x))


@case("DeeperGCN res+: h = gcn(relu(norm(h))) + h, the first convolution alone", nodes)
class DeeperGcn(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.encoder, self.pred = nn.Linear(6, D), nn.Linear(D, C)
        self.gcns = nn.ModuleList([Gen() for _ in range(layers)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(D) for _ in range(layers)])

    def forward(self, x, adj):
        h = self.gcns[0](self.encoder(x), adj)
        mark(h)
        for layer in range(1, len(self.gcns)):
            z = F.dropout(F.relu(self.norms[layer - 1](h)), 0.5, self.training)
            h = self.gcns[layer](z, adj) + h
            mark(h)
        return self.pred(F.relu(self.norms[-1](h)))


@case("jumping knowledge: residual graph layers, the readout concatenates the states of all", nodes)
class Jumping(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.layers = nn.Linear(6, D), nn.ModuleList([Gen() for _ in range(3)])
        self.lin = nn.Linear(3 * D, C)

    def forward(self, x, adj):
        h = self.enter(x)
        mark(h)
        states = []
        for layer in self.layers:
            h = F.relu(layer(h, adj)) + h
            mark(h)
            states.append(h)
        return self.lin(torch.cat(states, 1))


@case("initial residual and identity map: (1-b) s + b W s with s = (1-a) A h + a h0, ReLU after each", nodes)
class Gcn2(nn.Module):
    class Conv(nn.Module):
        def __init__(self, beta):
            super().__init__()
            self.weight, self.beta = nn.Parameter(torch.randn(D, D) * 0.3), beta

        def forward(self, h, adj, h0, alpha=0.1):
            s = (1 - alpha) * (adj @ h) + alpha * h0
            return (1 - self.beta) * s + self.beta * (s @ self.weight)

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([self.Conv(math.log(0.5 / (i + 1) + 1)) for i in range(4)])
        self.fcs = nn.ModuleList([nn.Linear(6, D), nn.Linear(D, C)])

    def forward(self, x, adj):
        h = h0 = F.relu(self.fcs[0](x))
        mark(h)
        for conv in self.convs:
            h = F.relu(conv(F.dropout(h, 0.5, self.training), adj, h0))
            mark(h)
        return self.fcs[-1](h)


@case("batched graphs: nodes of all graphs in one tensor, summed by graph; states have no axis of samples",
      lambda: ({"x": inputs(123, 5, 6)()[0].flatten(0, 1), "batch": torch.arange(6).repeat_interleave(5)}, vec()[1]))  # fmt: skip
class BatchedGraphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.layers = nn.Linear(6, D), nn.ModuleList([Mlp(D) for _ in range(3)])
        self.out = nn.Linear(D, C)

    def forward(self, x, batch):
        h = self.enter(x)
        for layer in self.layers:
            h = h + layer(h)
        return self.out(h.new_zeros(6, D).index_add(0, batch, h))


class HighwayLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.t = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        t = torch.sigmoid(self.t(x) - 1)
        return t * F.relu(self.h(x)) + (1 - t) * x


@case("highway modules in a list, after a plain layer", vec)
class Highways(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.highways = nn.Linear(6, D), nn.ModuleList([HighwayLayer() for _ in range(4)])
        self.out = nn.Linear(D, C)

    def forward(self, x):
        h = F.relu(self.plain(x))
        mark(h)
        for layer in self.highways:
            h = layer(h)
            mark(h)
        return self.out(h)


# -- of libraries ----------------------------------------------------------------------------------------------


def _transformers():
    of = importlib.import_module("of_transformers")
    more = importlib.import_module("fifth_libraries")
    text, small = of.TEXT, {**of.SMALL, "vocab_size": of.WORDS, "max_position_embeddings": 32, "pad_token_id": 1}
    gqa = {**small, **of.KV}
    for name, config, path in (
        ("Ernie4_5ForCausalLM", gqa, "model.layers"),
        ("NanoChatForCausalLM", gqa, "model.layers"),
        ("CwmForCausalLM", gqa, "model.layers"),
        ("EuroBertForMaskedLM", gqa, "model.layers"),
        ("BertGenerationDecoder", {**small, "is_decoder": True, "bos_token_id": 2, "eos_token_id": 3}, "bert.encoder.layer"),
        ("DeepseekV2ForCausalLM", {**small, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_key_value_heads": 2, "n_group": 1, "topk_group": 1}, "model.layers"),
    ):  # fmt: skip
        masked = "Masked" in name
        yield Case(name, SET, more.eager(of.model_of(name, config)), of.language, outputs(path, 3), "mean",
                   None if masked else next_token)  # fmt: skip
    for name, path, reads in (
        ("RobertaPreLayerNormForSequenceClassification", "roberta_prelayernorm.encoder.layer", 0),
        ("DebertaForSequenceClassification", "deberta.encoder.layer", 0),
    ):
        config = {**text, "type_vocab_size": 0} if name.startswith("Deberta") else text
        yield Case(name, SET, of.model_of(name, config), of.ids, outputs(path, 3), reads)
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    pair = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 32}
    for name in ("MarianMTModel", "M2M100ForConditionalGeneration", "BlenderbotSmallForConditionalGeneration"):
        build = of.model_of(name, {**pair, **heads, **special})
        yield Case(name, SET, build, of.both, outputs("model.decoder.layers", 3), "mean")
    wave = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    wave |= {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
    wave |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_labels": 5}
    wave |= {"classifier_proj_size": 8}
    for name, path in (
        ("Wav2Vec2ForSequenceClassification", "wav2vec2.encoder.layers"),
        ("WavLMForSequenceClassification", "wavlm.encoder.layers"),
    ):
        yield Case(name, SET, of.model_of(name, wave), of.sound, outputs(path, 3), "mean")
    name = "SwiftFormerForImageClassification"
    sizes = {"depths": [1, 1, 1, 2], "embed_dims": [8, 8, 16, 16], "num_labels": 5}
    paths = [
        f"swiftformer.encoder.network.{i}.blocks.{j}" for i, n in ((0, 1), (2, 1), (4, 1), (6, 2)) for j in range(n)
    ]
    yield Case(name, SET, of.model_of(name, sizes), of.large, (f"in:{paths[0]}", *paths))


def _timm():
    timm = importlib.import_module("timm")
    of = importlib.import_module("of_timm")

    def build(name, **options):
        return lambda: timm.create_model(name, num_classes=C, **options)

    paths = [f"stages.{i}.blocks.{j}" for i, n in enumerate((1, 2)) for j in range(n)]
    yield Case("timm InceptionNeXt", SET, build("inception_next_tiny", depths=(1, 2), dims=(16, 24)), of.images(32),
               (f"in:{paths[0]}", *paths))  # fmt: skip
    yield Case("timm VisFormer", SET, build("visformer_tiny", img_size=32, init_channels=8, embed_dim=16, depth=(2, 2, 2), num_heads=2), of.images(32),
               ("in:stage1.0", *(f"stage{i}.{j}" for i in (1, 2, 3) for j in (0, 1))))  # fmt: skip
    yield Case("timm Twins SVT", SET, build("twins_svt_small", img_size=32, embed_dims=(8, 16), num_heads=(2, 2), mlp_ratios=(2, 2), depths=(2, 2), sr_ratios=(2, 1), wss=(2, 2)), of.images(32),
               ("in:blocks.0.0", *(f"blocks.{i}.{j}" for i in (0, 1) for j in (0, 1))), "mean")  # fmt: skip


def _packages():
    palm = importlib.import_module("palm_pytorch")
    yield Case("PaLM_pytorch", SET, lambda: palm.PaLM(dim=16, num_tokens=20, depth=3, dim_head=8, heads=2, ff_mult=2),
               lambda: (tokens()[0], tokens()[1]), ("in:1", "1", "2", "3"), "mean")  # fmt: skip


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for found in (_transformers, _timm, _packages):
        try:
            yield from found()
        except ImportError:
            continue
