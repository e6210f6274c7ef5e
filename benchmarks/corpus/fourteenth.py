"""A twelfth unseen set, residual networks by hand and of libraries; sites were written before a reading."""

# ruff: noqa: D101, D106, E501, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib

import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from small import Att, C, D, Mlp, collector, generator, img, ser, tokens, vec
from torch import nn

SET = "twelfth set"
ALL, case = collector(SET)


def nodes():
    """Return 6 nodes, which are the samples, with a normalised adjacency."""
    x, y = vec()
    raw = torch.rand(6, 6, generator=generator(131), dtype=torch.float64)
    return {"x": x, "edges": raw / raw.sum(1, keepdim=True)}, y


# -- what is between blocks ------------------------------------------------------------------------------------


@case("states normalised to a sphere after every block: F.normalize(block(h))", vec)
class Sphere(nn.Module):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = Mlp(D)

        def forward(self, h):
            return h + self.f(h)

    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Linear(6, D), nn.ModuleList([self.Block() for _ in range(4)])
        self.head = nn.Linear(D, C)

    def forward(self, x):
        h = F.normalize(self.embed(x), dim=-1)
        mark(h)
        for block in self.blocks:
            h = F.normalize(block(h), dim=-1)
            mark(h)
        return 10 * self.head(h)


@case("DeepNet: LN(alpha h + f), attention and MLP in one list of pairs, norms in another", ser, "mean")
class DeepNet(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.embed = nn.Linear(6, D)
        self.layers = nn.ModuleList([nn.ModuleList([Att(D), Mlp(D)]) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)]) for _ in range(depth)])
        self.alpha, self.head = (2 * depth) ** 0.25, nn.Linear(D, C)

    def forward(self, x):
        h = self.embed(x)
        mark(h)
        for (att, mlp), (n1, n2) in zip(self.layers, self.norms):
            h = n1(self.alpha * h + att(h))
            mark(h)
            h = n2(self.alpha * h + mlp(h))
            mark(h)
        return self.head(h.mean(1))


@case("ReZero in a Sequential of branches, weights of skips in one parameter", vec)
class ReZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.branches = nn.Linear(6, D), nn.Sequential(*[Mlp(D) for _ in range(4)])
        self.resweight, self.cls = nn.Parameter(torch.full((4,), 0.3)), nn.Linear(D, C)

    def forward(self, x):
        h = self.proj(x)
        mark(h)
        for w, f in zip(self.resweight, self.branches):
            h = h + w * f(h)
            mark(h)
        return self.cls(h)


class Inverted(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.use_res = stride == 1 and cin == cout
        self.conv = nn.Sequential(
            nn.Conv2d(cin, 2 * cin, 1, bias=False), nn.BatchNorm2d(2 * cin), nn.ReLU6(),
            nn.Conv2d(2 * cin, 2 * cin, 3, stride, 1, groups=2 * cin, bias=False), nn.BatchNorm2d(2 * cin), nn.ReLU6(),
            nn.Conv2d(2 * cin, cout, 1, bias=False), nn.BatchNorm2d(cout),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)


@case(
    "MobileNetV2 by hand: a Sequential of stem, inverted residuals with and without a skip, and a last convolution", img
)
class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        features = [nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())]
        features += [Inverted(a, b, s) for a, b, s in ((8, 8, 1), (8, 12, 2), (12, 12, 1), (12, 16, 1), (16, 16, 1))]
        features += [nn.Sequential(nn.Conv2d(16, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6())]
        self.features, self.classifier = nn.Sequential(*features), nn.Linear(24, C)

    def forward(self, x):
        for i, f in enumerate(self.features):
            x = f(x)
            if i < 6:
                mark(x)
        return self.classifier(x.mean((2, 3)))


@case("a pooling and a ReLU between residual blocks, as loops of IMPALA write it", img)
class Impala(nn.Module):
    class Res(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.conv0, self.conv1 = nn.Conv2d(d, d, 3, padding=1), nn.Conv2d(d, d, 3, padding=1)

        def forward(self, x):
            return x + self.conv1(F.relu(self.conv0(F.relu(x))))

    class Stage(nn.Module):
        def __init__(self, a, b, res):
            super().__init__()
            self.conv, self.res_block0, self.res_block1 = nn.Conv2d(a, b, 3, padding=1), res(b), res(b)

        def forward(self, x):
            x = F.max_pool2d(self.conv(x), 3, 2, 1)
            mark(x)
            x = self.res_block0(x)
            mark(x)
            x = self.res_block1(x)
            mark(x)
            return x

    def __init__(self):
        super().__init__()
        self.conv_seqs = nn.ModuleList([self.Stage(3, 8, self.Res), self.Stage(8, 12, self.Res)])
        self.hidden, self.logits = nn.Linear(12 * 4, 16), nn.Linear(16, C)

    def forward(self, x):
        for seq in self.conv_seqs:
            x = seq(x)
        return self.logits(F.relu(self.hidden(F.relu(x.flatten(1)))))


class Bottle(nn.Module):
    expansion = 2

    def __init__(self, a, planes, stride=1, downsample=None):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 2 * planes, 1, bias=False), nn.BatchNorm2d(2 * planes)
        self.relu, self.downsample = nn.ReLU(inplace=True), downsample

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


@case("ResNet-50 by hand: bottlenecks, in-place ReLU, stages by _make_layer, a projection head (SimCLR)", img)
class SimClr(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.inplanes = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True)), 8
        self.layer1, self.layer2 = self._make_layer(6, 2, 1), self._make_layer(8, 2, 2)
        self.g = nn.Sequential(
            nn.Linear(16, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Linear(12, C)
        )

    def _make_layer(self, planes, blocks, stride):
        down = nn.Sequential(nn.Conv2d(self.inplanes, 2 * planes, 1, stride, bias=False), nn.BatchNorm2d(2 * planes))
        layers = [Bottle(self.inplanes, planes, stride, down)]
        self.inplanes = 2 * planes
        layers += [Bottle(self.inplanes, planes) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        h = self.f(x)
        mark(h)
        for stage in (self.layer1, self.layer2):
            for block in stage:
                h = block(h)
                mark(h)
        return self.g(h.mean((2, 3)))


# -- sequences -------------------------------------------------------------------------------------------------


class RwkvBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.key, self.value, self.receptance, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.ck, self.cv, self.cr = nn.Linear(D, 24, bias=False), nn.Linear(24, D, bias=False), nn.Linear(D, D)
        self.decay, self.mix = nn.Parameter(torch.linspace(-1, 1, D)), nn.Parameter(torch.full((D,), 0.6))

    def shift(self, z):
        return z * self.mix + F.pad(z, (0, 0, 1, -1)) * (1 - self.mix)

    def forward(self, x):
        z = self.shift(self.ln1(x))
        k, v, r = self.key(z), self.value(z), torch.sigmoid(self.receptance(z))
        num = den = 0.0
        outs = []
        for t in range(x.shape[1]):
            e = torch.exp(k[:, t])
            num, den = (
                torch.exp(-torch.exp(self.decay)) * num + e * v[:, t],
                torch.exp(-torch.exp(self.decay)) * den + e,
            )
            outs.append(num / den)
        x = x + self.output(r * torch.stack(outs, 1))
        z = self.shift(self.ln2(x))
        return x + torch.sigmoid(self.cr(z)) * self.cv(F.relu(self.ck(z)) ** 2)


@case("RWKV by hand: time mixing step by step, a norm before the first block", tokens, "mean")
class Rwkv(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.ln0 = nn.Embedding(20, D), nn.LayerNorm(D)
        self.blocks, self.ln_out = nn.ModuleList([RwkvBlock() for _ in range(3)]), nn.LayerNorm(D)
        self.head = nn.Linear(D, C, bias=False)

    def forward(self, idx):
        x = self.ln0(self.emb(idx))
        mark(x)
        for block in self.blocks:
            x = block(x)
            mark(x)
        return self.head(self.ln_out(x))


class TemporalBlock(nn.Module):
    def __init__(self, a, b, dilation):
        super().__init__()
        conv = lambda i, o: nn.utils.parametrizations.weight_norm(
            nn.Conv1d(i, o, 2, padding=dilation, dilation=dilation)
        )
        self.conv1, self.conv2, self.cut = conv(a, b), conv(b, b), dilation
        self.downsample = nn.Conv1d(a, b, 1) if a != b else None

    def forward(self, x):
        out = F.relu(self.conv1(x)[..., : -self.cut])
        out = F.relu(self.conv2(out)[..., : -self.cut])
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


@case("TCN: weight norm, dilations, three widths, the last step; the first block is given the input", ser,
      lambda h: h[..., -1].norm(dim=1))  # fmt: skip
class Tcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            *[TemporalBlock(a, b, 2**i) for i, (a, b) in enumerate(((6, 8), (8, 12), (12, 12)))]
        )
        self.linear = nn.Linear(12, C)

    def forward(self, x):
        h = x.transpose(1, 2)
        mark(h)
        for block in self.network:
            h = block(h)
            mark(h)
        return self.linear(h[..., -1])


@case("looped transformer with the input injected before each loop: h = block(h + x0)", ser, "mean")
class Looped(nn.Module):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.att, self.mlp = Att(D), Mlp(D)

        def forward(self, h):
            h = h + self.att(h)
            return h + self.mlp(h)

    def __init__(self):
        super().__init__()
        self.read_in, self.block, self.read_out = nn.Linear(6, D), self.Block(), nn.Linear(D, C)

    def forward(self, x):
        x0 = self.read_in(x)
        mark(x0)
        h = torch.zeros_like(x0)
        for _ in range(4):
            h = self.block(h + x0)
            mark(h)
        return self.read_out(h.mean(1))


@case("value residual and a U of skips as speed runs of nanoGPT have them; no one stream", tokens, "mean")
class SpeedRun(nn.Module):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.o, self.mlp = nn.Linear(D, 3 * D), nn.Linear(D, D), Mlp(D)
            self.lambdas = nn.Parameter(torch.tensor([0.7, 0.3]))

        def forward(self, x, v1, x0):
            x = self.lambdas[0] * x + self.lambdas[1] * x0
            q, k, v = self.qkv(F.rms_norm(x, (D,))).chunk(3, -1)
            v1 = v if v1 is None else v1
            x = x + self.o(F.scaled_dot_product_attention(q, k, 0.5 * v + 0.5 * v1, is_causal=True))
            return x + self.mlp(x), v1

    def __init__(self):
        super().__init__()
        self.wte, self.blocks = nn.Embedding(20, D), nn.ModuleList([self.Block() for _ in range(4)])
        self.skip_weights, self.head = nn.Parameter(torch.ones(2)), nn.Linear(D, C, bias=False)

    def forward(self, idx):
        x = x0 = F.rms_norm(self.wte(idx), (D,))
        v1, skips = None, []
        for i, block in enumerate(self.blocks):
            if i >= 2:
                x = x + self.skip_weights[i - 2] * skips.pop()
            x, v1 = block(x, v1, x0)
            if i < 2:
                skips.append(x)
        return self.head(F.rms_norm(x, (D,)))


@case("gated DeltaNet by hand: states in a matrix, short convolutions; norms and mixers in two lists", ser, "mean")
class Delta(nn.Module):
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.gate, self.o = nn.Linear(D, 3 * D), nn.Linear(D, 2), nn.Linear(D, D)
            self.conv = nn.Conv1d(3 * D, 3 * D, 3, padding=2, groups=3 * D)

        def forward(self, z):
            t = z.shape[1]
            q, k, v = F.silu(self.conv(self.qkv(z).transpose(1, 2))[..., :t]).transpose(1, 2).chunk(3, -1)
            k, (a, b) = F.normalize(k, dim=-1), torch.sigmoid(self.gate(z)).unbind(-1)
            s, outs = z.new_zeros(len(z), D, D), []
            for i in range(t):
                s = s * a[:, i, None, None]
                u = (v[:, i] - torch.einsum("bij,bj->bi", s, k[:, i])) * b[:, i, None]
                s = s + u[:, :, None] * k[:, i, None]
                outs.append(torch.einsum("bij,bj->bi", s, q[:, i]))
            return self.o(torch.stack(outs, 1))

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(6, D), nn.Linear(D, C)
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(3)])
        self.mixers = nn.ModuleList([self.Mixer() for _ in range(3)])

    def forward(self, x):
        h = self.inp(x)
        mark(h)
        for norm, mixer in zip(self.norms, self.mixers):
            h = h + mixer(norm(h))
            mark(h)
        return self.out(h.mean(1))


@case("prefix tuning: a frozen transformer, learned keys and values handed to each layer", ser, "mean")
class Prefix(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.n, self.q, self.kv, self.o, self.mlp = (
                nn.LayerNorm(D),
                nn.Linear(D, D),
                nn.Linear(D, 2 * D),
                nn.Linear(D, D),
                Mlp(D),
            )

        def forward(self, h, past):
            z = self.n(h)
            k, v = self.kv(z).chunk(2, -1)
            k, v = (torch.cat([p.expand(len(h), -1, -1), w], 1) for p, w in zip(past, (k, v)))
            h = h + self.o(F.scaled_dot_product_attention(self.q(z), k, v))
            return h + self.mlp(h)

    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Linear(6, D), nn.ModuleList([self.Layer() for _ in range(3)])
        for p in self.parameters():
            p.requires_grad_(False)
        self.prefix, self.head = nn.Parameter(torch.randn(3, 2, 2, D)), nn.Linear(D, C)

    def forward(self, x):
        h = self.embed(x)
        mark(h)
        for layer, past in zip(self.layer, self.prefix):
            h = layer(h, past)
            mark(h)
        return self.head(h.mean(1))


@case("soft mixture of experts in every second layer, which returns a loss beside the state", ser, "mean")
class Experts(nn.Module):
    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.att, self.router, self.experts = Att(D), nn.Linear(D, 3), nn.ModuleList([Mlp(D) for _ in range(3)])

        def forward(self, h):
            h = h + self.att(h)
            w = self.router(h).softmax(-1)
            out = torch.stack([e(h) for e in self.experts], -1) @ w.unsqueeze(-1)
            return h + out.squeeze(-1), (w.mean((0, 1)) ** 2).sum()

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.att, self.mlp = Att(D), Mlp(D)

        def forward(self, h):
            h = h + self.att(h)
            return h + self.mlp(h), None

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(6, D), nn.Linear(D, C)
        self.layers = nn.ModuleList([self.Moe() if i % 2 else self.Dense() for i in range(4)])
        self.aux = None

    def forward(self, x):
        h, losses = self.inp(x), []
        mark(h)
        for layer in self.layers:
            h, loss = layer(h)
            mark(h)
            losses += [] if loss is None else [loss]
        self.aux = sum(losses)
        return self.out(h.mean(1))


# -- graphs, sets, equations -----------------------------------------------------------------------------------


@case("APPNP after an MLP: ten steps of propagation without weights; the layers of the MLP are the network", nodes)
class Appnp(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin1, self.lin2, self.lin3 = nn.Linear(6, D), nn.Linear(D, D), nn.Linear(D, C)

    def forward(self, x, edges):
        h = self.lin1(x)
        mark(h)
        h = self.lin2(F.relu(h))
        mark(h)
        z = z0 = self.lin3(F.relu(h))
        for _ in range(10):
            z = 0.9 * (edges @ z) + 0.1 * z0
        return z


@case("graph transformer: local convolution and global attention in parallel, summed with the state", nodes)
class Gps(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.local, self.att, self.n1, self.n2, self.n3 = (
                nn.Linear(D, D),
                Att(D),
                *(nn.LayerNorm(D) for _ in range(3)),
            )
            self.mlp = nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, D))

        def forward(self, h, edges):
            a = self.n1(h + F.relu(self.local(edges @ h)))
            b = self.n2(h + self.att(h.unsqueeze(0)).squeeze(0))
            s = a + b
            return self.n3(s + self.mlp(s))

    def __init__(self):
        super().__init__()
        self.node_emb, self.convs = nn.Linear(6, D), nn.ModuleList([self.Layer() for _ in range(3)])
        self.head = nn.Linear(D, C)

    def forward(self, x, edges):
        h = self.node_emb(x)
        mark(h)
        for conv in self.convs:
            h = conv(h, edges)
            mark(h)
        return self.head(h)


@case("symplectic steps of positions and momenta; two streams", vec)
class Symplectic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_in, self.p_in, self.out = nn.Linear(6, D), nn.Linear(6, D), nn.Linear(2 * D, C)
        self.force = nn.ModuleList([Mlp(D) for _ in range(4)])

    def forward(self, x):
        q, p = self.q_in(x), self.p_in(x)
        for f in self.force:
            p = p + 0.3 * f(q)
            q = q + 0.3 * p
        return self.out(torch.cat([q, p], 1))


@case("Heun steps with a block of its own for every step: h + dt/2 (f(h) + f(h + dt f(h)))", vec)
class Heun(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.steps, self.leave = nn.Linear(6, D), nn.ModuleList([Mlp(D) for _ in range(3)]), nn.Linear(D, C)

    def forward(self, x):
        h, dt = self.enter(x), 0.5
        mark(h)
        for f in self.steps:
            k = f(h)
            h = h + dt / 2 * (k + f(h + dt * k))
            mark(h)
        return self.leave(h)


@case("coordinates by sines: FiLM of a latent, a skip of the input into the third layer; plain layers", vec)
class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3, self.l4 = nn.Linear(6, D), nn.Linear(D, D), nn.Linear(D + 6, D), nn.Linear(D, C)

    def forward(self, x):
        h = self.l1(x)
        mark(h)
        h = self.l2(torch.sin(h))
        mark(h)
        h = self.l3(torch.cat([torch.sin(h), x], 1))
        mark(h)
        return self.l4(torch.sin(h))


# -- of libraries ----------------------------------------------------------------------------------------------


def _transformers():
    of = importlib.import_module("of_transformers")
    more = importlib.import_module("fifth_libraries")
    small = {**of.SMALL, "vocab_size": of.WORDS, "max_position_embeddings": 32, "pad_token_id": 1}
    gqa = {**small, **of.KV}
    for name, config, path in (
        ("Dots1ForCausalLM", {**gqa, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}, "model.layers"),
        ("FlexOlmoForCausalLM", {**gqa, "num_experts": 2, "num_experts_per_tok": 1}, "model.layers"),
        ("GraniteMoeSharedForCausalLM", {**gqa, "num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 16}, "model.layers"),
        ("ModernBertDecoderForCausalLM", {**small, "global_attn_every_n_layers": 2}, "model.layers"),
    ):  # fmt: skip
        yield Case(name, SET, more.eager(of.model_of(name, config)), of.language, outputs(path, 3), "mean", next_token)
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    pair = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 32}
    yield Case("MvpForConditionalGeneration", SET, of.model_of("MvpForConditionalGeneration", {**pair, **heads, **special}),
               of.both, outputs("model.decoder.layers", 3), "mean")  # fmt: skip
    wave = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    wave |= {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
    wave |= {
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "num_labels": 5,
        "classifier_proj_size": 8,
    }
    name = "HubertForSequenceClassification"
    yield Case(name, SET, of.model_of(name, wave), of.sound, outputs("hubert.encoder.layers", 3), "mean")


def _timm():
    timm = importlib.import_module("timm")
    of = importlib.import_module("of_timm")

    def build(name, **options):
        return lambda: timm.create_model(name, num_classes=C, **options)

    yield Case("timm Res2NeXt", SET, build("res2next50", layers=(1, 1, 2, 1), base_width=2, cardinality=2), of.images(32),
               of.layered((1, 1, 2, 1)))  # fmt: skip


def _packages():
    vit = importlib.import_module("vit_pytorch.cct")
    yield Case("vit_pytorch CCT", SET, lambda: vit.CCT(img_size=16, embedding_dim=16, n_conv_layers=1, kernel_size=3, stride=2, padding=1, num_layers=3, num_heads=2, mlp_ratio=2., num_classes=C),
               lambda: (torch.randn(4, 3, 16, 16, generator=generator(133), dtype=torch.float64), torch.arange(4) % C),
               outputs("classifier.blocks", 3), "mean")  # fmt: skip


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for found in (_transformers, _timm, _packages):
        try:
            yield from found()
        except ImportError:
            continue
