"""An eighth unseen set, residual networks by hand and of libraries; sites were written before a reading."""

# ruff: noqa: D101, D106, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import copy
import importlib
import math
from functools import partial

import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from small import C, D, collector, generator, img, inputs, ser, tokens, vec
from tenth_plain import SET
from torch import nn

ALL, case = collector(SET)


def graph():
    """Return nodes with a dense adjacency each."""
    x, y = inputs(81, 7, 6)()
    raw = torch.rand(6, 7, 7, generator=generator(82), dtype=torch.float64)
    return {"x": x, "adj": raw / raw.sum(-1, keepdim=True)}, y


def noisy():
    """Return pictures as tokens, a time, and the label that conditions."""
    x, y = inputs(83, 7, 6)()
    return {"x": x, "t": torch.arange(6).double() / 6, "y": y.flip(0)}, y


# -- transformers ----------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def precompute_freqs_cis(dim, end):
    """Return the rotations of rotary embeddings as complex numbers."""
    freqs = 1.0 / (10000 ** (torch.arange(0, dim, 2).double() / dim))
    return torch.polar(torch.ones(end, dim // 2).double(), torch.outer(torch.arange(end).double(), freqs))


class LlamaBlock(nn.Module):
    def __init__(self, layer_id, dim=D, n_heads=2):
        super().__init__()
        self.layer_id, self.n_heads, self.head_dim = layer_id, n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w2, self.w3 = nn.Linear(dim, 24), nn.Linear(24, dim), nn.Linear(dim, 24)
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)

    def attention(self, x, freqs_cis, mask):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv))
        turn = lambda z: torch.view_as_real(
            torch.view_as_complex(z.reshape(*z.shape[:-1], -1, 2)) * freqs_cis[None, :, None]
        ).flatten(3)
        q, k, v = (z.transpose(1, 2) for z in (turn(q), turn(k), v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        scores = scores if mask is None else scores + mask
        return self.wo((F.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x, start_pos, freqs_cis, mask):
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask)
        z = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(z)) * self.w3(z))


@case("Llama by hand: layer(h, start_pos, freqs_cis, mask), rotations as complex numbers", tokens, "mean")
class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(20, D)
        self.layers = nn.ModuleList()
        for layer_id in range(3):
            self.layers.append(LlamaBlock(layer_id))
        self.norm, self.output = RMSNorm(D), nn.Linear(D, C, bias=False)
        self.freqs_cis = precompute_freqs_cis(D // 2, 32)

    def forward(self, tokens, start_pos=0):
        h = self.tok_embeddings(tokens)
        mark(h)
        seqlen = tokens.shape[1]
        freqs_cis = self.freqs_cis[start_pos : start_pos + seqlen]
        mask = torch.triu(torch.full((seqlen, seqlen), float("-inf"), dtype=h.dtype), diagonal=1)
        for layer in self.layers:
            h = layer(h, start_pos, freqs_cis, mask)
            mark(h)
        return self.output(self.norm(h))


def clones(module, n):
    """Return n copies of a module."""
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.sublayer, self.size = clones(SublayerConnection(size, dropout), 2), size

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda z: self.self_attn(z, z, z, attn_mask=mask, need_weights=False)[0])
        return self.sublayer[1](x, self.feed_forward)


@case("annotated transformer: clones, sublayer connections that take a function", ser, "mean")
class Annotated(nn.Module):
    class Encoder(nn.Module):
        def __init__(self, layer, n):
            super().__init__()
            self.layers, self.norm = clones(layer, n), nn.LayerNorm(layer.size)

        def forward(self, x, mask):
            for layer in self.layers:
                x = layer(x, mask)
                mark(x)
            return self.norm(x)

    def __init__(self):
        super().__init__()
        attn = nn.MultiheadAttention(D, 2, batch_first=True)
        ff = nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, D))
        self.src_embed, self.encoder = nn.Linear(6, D), self.Encoder(EncoderLayer(D, attn, ff, 0.1), 3)
        self.generator = nn.Linear(D, C)

    def forward(self, src, src_mask=None):
        x = self.src_embed(src) * math.sqrt(D)
        mark(x)
        return F.log_softmax(self.generator(self.encoder(x, src_mask).mean(1)), dim=-1)


class DiTBlock(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(hidden_size, elementwise_affine=False) for _ in range(2))
        self.attn = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 24), nn.GELU(approximate="tanh"), nn.Linear(24, hidden_size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 6 * hidden_size))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, dim=1)
        z = self.norm1(x) * (1 + scale1.unsqueeze(1)) + shift1.unsqueeze(1)
        x = x + gate1.unsqueeze(1) * self.attn(z, z, z, need_weights=False)[0]
        z = self.norm2(x) * (1 + scale2.unsqueeze(1)) + shift2.unsqueeze(1)
        return x + gate2.unsqueeze(1) * self.mlp(z)


@case("DiT: adaptive norms and gates from time and class", noisy, "mean")
class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.x_embedder, self.t_embedder = nn.Linear(6, D), nn.Sequential(nn.Linear(1, D), nn.SiLU(), nn.Linear(D, D))
        self.y_embedder = nn.Embedding(C, D)
        self.pos_embed = nn.Parameter(torch.randn(1, 7, D) * 0.1, requires_grad=False)
        self.blocks = nn.ModuleList([DiTBlock(D, 2) for _ in range(3)])
        self.final_norm, self.linear = nn.LayerNorm(D, elementwise_affine=False), nn.Linear(D, C)
        self.final_modulation = nn.Sequential(nn.SiLU(), nn.Linear(D, 2 * D))

    def forward(self, x, t, y):
        x = self.x_embedder(x) + self.pos_embed
        mark(x)
        c = self.t_embedder(t[:, None]) + self.y_embedder(y)
        for block in self.blocks:
            x = block(x, c)
            mark(x)
        shift, scale = self.final_modulation(c).chunk(2, dim=1)
        return self.linear((self.final_norm(x) * (1 + scale[:, None]) + shift[:, None]).mean(1))


class CachedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 24), nn.GELU(), nn.Linear(24, D))

    def forward(self, x, layer_past=None):
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 1), torch.cat([layer_past[1], v], 1)
        a = self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=layer_past is None))
        x = x + a
        return x + self.mlp(self.ln_2(x)), torch.stack([k, v])


@case("GPT with a cache: blocks return the state and their keys and values, which are returned", tokens, "mean")
class CachedGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, D), nn.Embedding(16, D)
        self.h = nn.ModuleList([CachedBlock() for _ in range(3)])
        self.ln_f, self.head = nn.LayerNorm(D), nn.Linear(D, C, bias=False)

    def forward(self, input_ids, past=None):
        past = [None] * len(self.h) if past is None else past
        hidden = self.wte(input_ids) + self.wpe(torch.arange(input_ids.size(-1)))
        mark(hidden)
        presents = []
        for block, layer_past in zip(self.h, past):
            hidden, present = block(hidden, layer_past)
            mark(hidden)
            presents.append(present)
        return self.head(self.ln_f(hidden)), presents


# -- state spaces and recurrence -------------------------------------------------------------------------------


class SelectiveMixer(nn.Module):
    """A selective scan, step by step."""

    def __init__(self, d, n=4):
        super().__init__()
        self.in_proj, self.conv1d = nn.Linear(d, 2 * d, bias=False), nn.Conv1d(d, d, 3, padding=2, groups=d)
        self.x_proj, self.dt_proj = nn.Linear(d, 2 + 2 * n, bias=False), nn.Linear(2, d)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, n + 1).double().repeat(d, 1)))
        self.D, self.out_proj, self.n = nn.Parameter(torch.ones(d)), nn.Linear(d, d, bias=False), n

    def forward(self, u):
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))
        dt, b, c = self.x_proj(x).split([2, self.n, self.n], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        da = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.A_log))
        db = dt.unsqueeze(-1) * b.unsqueeze(2)
        state, ys = 0.0, []
        for t in range(u.shape[1]):
            state = da[:, t] * state + db[:, t] * x[:, t, :, None]
            ys.append((state * c[:, t, None, :]).sum(-1))
        return self.out_proj((torch.stack(ys, 1) + x * self.D) * F.silu(z))


class MambaBlock(nn.Module):
    """Add, norm, mixer: hands the branch and the residual on, which the next block adds."""

    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx, self.norm, self.mixer = layer_idx, nn.LayerNorm(D), SelectiveMixer(D)

    def forward(self, hidden_states, residual=None):
        residual = (hidden_states + residual) if residual is not None else hidden_states
        mark(residual)
        return self.mixer(self.norm(residual)), residual


@case(
    "Mamba as its authors write it: blocks take and return (hidden, residual), the last sum is outside", tokens, "mean"
)
class MambaLm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, D)
        self.layers = nn.ModuleList([MambaBlock(i) for i in range(3)])
        self.norm_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, C, bias=False)

    def forward(self, input_ids):
        hidden_states, residual = self.embedding(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual)
        residual = hidden_states + residual
        mark(residual)
        return self.lm_head(self.norm_f(residual))


class DiagonalSsm(nn.Module):
    """A diagonal state space model on (B, H, L), which returns its state too."""

    def __init__(self, h, n=4):
        super().__init__()
        self.log_dt = nn.Parameter(torch.linspace(-3, -1, h))
        self.C = nn.Parameter(torch.randn(h, n) * 0.5)
        self.log_A_real = nn.Parameter(torch.log(0.5 + torch.rand(h, n)))
        self.D = nn.Parameter(torch.randn(h))
        self.output_linear = nn.Sequential(nn.Conv1d(h, 2 * h, 1), nn.GLU(dim=-2))

    def forward(self, u):
        length = u.size(-1)
        decay = -torch.exp(self.log_A_real) * torch.exp(self.log_dt)[:, None]
        kernel = (self.C.unsqueeze(-1) * torch.exp(decay.unsqueeze(-1) * torch.arange(length, dtype=u.dtype))).sum(1)
        spectrum = torch.fft.rfft(kernel, n=2 * length) * torch.fft.rfft(u, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        return self.output_linear(F.gelu(y + u * self.D.unsqueeze(-1))), None


@case("S4D example: (B, H, L), norm first on the transposed state, layers and norms and dropouts in three lists", ser,
      lambda h: h.norm(dim=1).mean(1))  # fmt: skip
class S4Model(nn.Module):
    def __init__(self, prenorm=True):
        super().__init__()
        self.prenorm = prenorm
        self.encoder, self.decoder = nn.Linear(6, D), nn.Linear(D, C)
        self.s4_layers, self.norms, self.dropouts = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for _ in range(3):
            self.s4_layers.append(DiagonalSsm(D))
            self.norms.append(nn.LayerNorm(D))
            self.dropouts.append(nn.Dropout1d(0.1))

    def forward(self, x):
        x = self.encoder(x).transpose(-1, -2)
        mark(x)
        for layer, norm, dropout in zip(self.s4_layers, self.norms, self.dropouts):
            z = x
            if self.prenorm:
                z = norm(z.transpose(-1, -2)).transpose(-1, -2)
            z, _ = layer(z)
            x = dropout(z) + x
            mark(x)
            if not self.prenorm:
                x = norm(x.transpose(-1, -2)).transpose(-1, -2)
        return self.decoder(x.transpose(-1, -2).mean(dim=1))


class XlstmBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.gates = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, 2)
        self.out = nn.Linear(D, D)

    def forward(self, x, state=None):
        z = self.norm(x)
        q, k, v = self.qkv(z).chunk(3, -1)
        i, f = torch.sigmoid(self.gates(z)).unbind(-1)
        memory = x.new_zeros(len(x), D, D) if state is None else state
        outs = []
        for t in range(x.shape[1]):
            memory = f[:, t, None, None] * memory + i[:, t, None, None] * v[:, t, :, None] * k[:, t, None, :]
            outs.append((memory @ q[:, t, :, None]).squeeze(-1) / D)
        return x + self.out(torch.stack(outs, 1)), memory


@case("matrix-memory LSTM: blocks return the state and their memory, the last step is read", ser, -1)
class Xlstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.blocks = nn.Linear(6, D), nn.ModuleList([XlstmBlock() for _ in range(3)])
        self.post, self.head = nn.LayerNorm(D), nn.Linear(D, C)

    def forward(self, x, states=None):
        x = self.proj(x)
        mark(x)
        states = {} if states is None else states
        for i, block in enumerate(self.blocks):
            x, states[i] = block(x, states.get(i))
            mark(x)
        return self.head(self.post(x[:, -1])), states


# -- convolutional ---------------------------------------------------------------------------------------------


class DenseBottleneck(nn.Module):
    def __init__(self, cin, growth):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, 2 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        return torch.cat([self.conv2(F.relu(self.bn2(out))), x], 1)


class Transition(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(cin), nn.Conv2d(cin, cout, 1, bias=False)

    def forward(self, x):
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


@case("DenseNet for CIFAR: layers return cat([new, x]), transitions between two dense blocks", img)
class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.dense1 = nn.Sequential(DenseBottleneck(8, 4), DenseBottleneck(12, 4))
        self.trans1 = Transition(16, 8)
        self.dense2 = nn.Sequential(DenseBottleneck(8, 4), DenseBottleneck(12, 4))
        self.bn, self.linear = nn.BatchNorm2d(16), nn.Linear(16, C)

    def forward(self, x):
        h = self.conv1(x)
        mark(h)
        for layer in self.dense1:
            h = layer(h)
            mark(h)
        h = self.trans1(h)
        for layer in self.dense2:
            h = layer(h)
            mark(h)
        return self.linear(F.adaptive_avg_pool2d(F.relu(self.bn(h)), 1).flatten(1))


class FixupBlock(nn.Module):
    """Without norms: scalar biases and one scale."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.downsample = nn.AvgPool2d(1, stride=stride) if stride != 1 else None

    def forward(self, x):
        out = self.conv2(F.relu(self.conv1(x + self.bias1a) + self.bias1b) + self.bias2a) * self.scale + self.bias2b
        identity = x
        if self.downsample is not None:
            identity = self.downsample(x + self.bias1a)
            identity = torch.cat((identity, torch.zeros_like(identity)), 1)
        out += identity
        return F.relu(out)


@case("Fixup ResNet: scalar biases, shortcuts by pooling and zeros, ReLU after the sum", img)
class Fixup(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bias1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Parameter(torch.zeros(1))
        self.layer1, self.layer2 = self._make_layer(8, 8, 2, 1), self._make_layer(8, 16, 2, 2)
        self.bias2, self.fc = nn.Parameter(torch.zeros(1)), nn.Linear(16, C)

    def _make_layer(self, cin, cout, blocks, stride):
        layers = [FixupBlock(cin, cout, stride)]
        for _ in range(1, blocks):
            layers.append(FixupBlock(cout, cout))
        return nn.Sequential(*layers)

    def forward(self, x):
        x = F.relu(self.conv1(x) + self.bias1)
        mark(x)
        for stage in (self.layer1, self.layer2):
            for block in stage:
                x = block(x)
                mark(x)
        return self.fc(x.mean((2, 3)) + self.bias2)


class JasperBlock(nn.Module):
    """Sub-blocks of separable convolutions, and a residual by a pointwise convolution and a norm."""

    def __init__(self, cin, cout, repeat=2):
        super().__init__()
        layers, c = [], cin
        for i in range(repeat):
            layers += [
                nn.Conv1d(c, c, 3, padding=1, groups=c, bias=False),
                nn.Conv1d(c, cout, 1, bias=False),
                nn.BatchNorm1d(cout),
            ]
            layers += [nn.ReLU(), nn.Dropout(0.1)] if i < repeat - 1 else []
            c = cout
        self.mconv = nn.ModuleList(layers)
        self.res = nn.Sequential(nn.Conv1d(cin, cout, 1, bias=False), nn.BatchNorm1d(cout))
        self.mout = nn.Sequential(nn.ReLU(), nn.Dropout(0.1))

    def forward(self, x):
        out = x
        for layer in self.mconv:
            out = layer(out)
        return self.mout(out + self.res(x))


@case("QuartzNet: residuals through a convolution and a norm, (B, C, T), the mean over time", ser,
      lambda h: h.norm(dim=1).mean(1))  # fmt: skip
class QuartzNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.prologue = nn.Sequential(nn.Conv1d(6, D, 3, padding=1), nn.BatchNorm1d(D), nn.ReLU())
        self.encoder = nn.Sequential(*[JasperBlock(D, D) for _ in range(3)])
        self.decoder = nn.Linear(D, C)

    def forward(self, x):
        h = self.prologue(x.transpose(1, 2))
        mark(h)
        for block in self.encoder:
            h = block(h)
            mark(h)
        return self.decoder(h.mean(-1))


class DoubleConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        return self.double_conv(x)


def segments():
    """Return pictures and a class per pixel."""
    x, _ = img()
    return x, torch.randint(C, (6, 8, 8), generator=generator(84))


@case("U-net: down and up, concatenation; no one stream", segments, None,
      lambda out, y: F.cross_entropy(out, y, reduction="none").mean((1, 2)))  # fmt: skip
class SegUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down1 = DoubleConv(3, 8), nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 12))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(12, 12))
        self.up1, self.up2 = DoubleConv(24, 8), DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, C, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(torch.cat([x2, F.interpolate(x3, scale_factor=2.0)], 1))
        return self.outc(self.up2(torch.cat([x1, F.interpolate(x, scale_factor=2.0)], 1)))


# -- vectors and graphs ----------------------------------------------------------------------------------------


@case("residual MLP by attributes: fc1 and fc2 of one width, x = x + relu(fc(norm(x)))", vec)
class AttributeMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc_in = nn.Linear(6, D)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.fc1, self.fc2, self.fc3 = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.fc_out = nn.Linear(D, C)

    def forward(self, x):
        x = self.fc_in(x)
        mark(x)
        x = x + F.relu(self.fc1(self.norm1(x)))
        mark(x)
        x = x + F.relu(self.fc2(self.norm2(x)))
        mark(x)
        x = x + F.relu(self.fc3(self.norm3(x)))
        mark(x)
        return self.fc_out(x)


class TabularBlock(nn.Module):
    def __init__(self, d, p=0.1):
        super().__init__()
        self.norm, self.linear_first, self.linear_second = nn.BatchNorm1d(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.activation, self.p = nn.ReLU(), p

    def forward(self, x):
        z = self.linear_first(self.norm(x))
        return F.dropout(
            self.linear_second(F.dropout(self.activation(z), self.p, self.training)), self.p, self.training
        )


@case("tabular ResNet: branches in a list, x = x + block(x), the prediction is a module of three", vec)
class TabularResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_layer = nn.Linear(6, D)
        self.blocks = nn.ModuleList([TabularBlock(D) for _ in range(4)])
        self.prediction = nn.Sequential(nn.BatchNorm1d(D), nn.ReLU(), nn.Linear(D, C))

    def forward(self, x):
        x = self.first_layer(x)
        mark(x)
        for block in self.blocks:
            x = x + block(x)
            mark(x)
        return self.prediction(x)


class DenseGin(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x, adj):
        z = (1 + self.eps) * x + F.relu(adj @ x)
        return self.mlp(z.flatten(0, 1)).view_as(x)


@case("graph classifier: h_list, batch norms in a second list, the last without ReLU, residual sums", graph, "mean")
class OgbGnn(nn.Module):
    def __init__(self, num_layer=3):
        super().__init__()
        self.num_layer, self.drop_ratio = num_layer, 0.5
        self.atom_encoder = nn.Linear(6, D)
        self.convs, self.batch_norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(num_layer):
            self.convs.append(DenseGin(D))
            self.batch_norms.append(nn.LayerNorm(D))
        self.graph_pred_linear = nn.Linear(D, C)

    def forward(self, x, adj):
        h_list = [self.atom_encoder(x)]
        mark(h_list[0])
        for layer in range(self.num_layer):
            h = self.batch_norms[layer](self.convs[layer](h_list[layer], adj))
            if layer < self.num_layer - 1:
                h = F.relu(h)
            h = F.dropout(h, self.drop_ratio, training=self.training)
            h = h + h_list[layer]
            mark(h)
            h_list.append(h)
        return self.graph_pred_linear(h_list[-1].mean(1))


@case("graph attention with a linear skip in each layer: elu(att(x) + lin(x))", graph, "mean")
class LinearSkipGat(nn.Module):
    class Att(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.lin, self.att = nn.Linear(a, b, bias=False), nn.Linear(b, 1, bias=False)

        def forward(self, x, adj):
            z = self.lin(x)
            return torch.softmax(F.leaky_relu(self.att(z).transpose(1, 2) + self.att(z)) + adj.log(), -1) @ z

    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, D)
        self.conv1, self.lin1 = self.Att(D, D), nn.Linear(D, D)
        self.conv2, self.lin2 = self.Att(D, D), nn.Linear(D, D)
        self.head = nn.Linear(D, C)

    def forward(self, x, adj):
        x = self.enc(x)
        mark(x)
        x = F.elu(self.conv1(x, adj) + self.lin1(x))
        mark(x)
        x = F.elu(self.conv2(x, adj) + self.lin2(x))
        mark(x)
        return self.head(x.mean(1))


# -- of libraries ----------------------------------------------------------------------------------------------


def _pictures(size=32, n=4):
    return lambda: (torch.randn(n, 3, size, size, generator=generator(85), dtype=torch.float64), torch.arange(n) % C)


def _ids():
    x = torch.randint(20, (6, 8), generator=generator(86))
    return x, torch.randint(20, (6, 8), generator=generator(87))


def _masked():
    x, y = _ids()
    return {"x": x, "mask": torch.ones(6, 8, dtype=torch.bool)}, y


def _spectrogram():
    x = torch.randn(4, 8, 20, generator=generator(88), dtype=torch.float64)
    return {"input_features": x}, torch.arange(4) % C


def _transformers():
    of = importlib.import_module("of_transformers")
    small = {**of.SMALL, "vocab_size": of.WORDS, "max_position_embeddings": 32, "pad_token_id": 1}
    experts = {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    eager = importlib.import_module("fifth_libraries").eager
    for name, config in (
        ("GptOssForCausalLM", {**small, **experts}),
        ("HunYuanDenseV1ForCausalLM", {**small, "num_key_value_heads": 2, "head_dim": 8}),
    ):
        build = eager(of.model_of(name, config))
        yield Case(name, SET, build, of.language, outputs("model.layers", 3), "mean", next_token)
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    whisper = {"num_mel_bins": 8, "d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "max_source_positions": 10}
    whisper |= {"vocab_size": 40, "num_labels": 5, "classifier_proj_size": 8}
    name = "WhisperForAudioClassification"
    yield Case(name, SET, of.model_of(name, {**whisper, **heads, **special}), _spectrogram,
               outputs("encoder.layers", 3), "mean")  # fmt: skip
    plbart = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "max_position_embeddings": 32}
    name = "PLBartForConditionalGeneration"
    yield Case(name, SET, of.model_of(name, {**plbart, **heads, **special}), of.both,
               outputs("model.decoder.layers", 3), "mean")  # fmt: skip
    name = "MobileNetV1ForImageClassification"
    config = {"num_labels": 5, "depth_multiplier": 0.25, "image_size": 32}
    sites = ("mobilenet_v1.conv_stem.convolution", *(f"mobilenet_v1.layer.{i}.convolution" for i in range(26)))
    yield Case(name, SET, of.model_of(name, config), of.large, sites)


def _timm():
    of = lambda name: importlib.import_module(f"timm.models.{name}")
    staged = lambda pattern, depths: [pattern.format(i, j) for i, n in enumerate(depths) for j in range(n)]
    paths = staged("stages.{}.blocks.{}", (2, 2, 2))
    build = lambda: of("repvit").RepVit(num_classes=C, embed_dim=(8, 12, 16), depth=(2, 2, 2))
    yield Case("timm.RepVit", SET, build, _pictures(), (f"in:{paths[0]}", *paths))
    paths = staged("stages.{}.blocks.{}", (1, 2, 2))
    build = lambda: of("tiny_vit").TinyVit(
        num_classes=C, embed_dims=(8, 12, 16), depths=(1, 2, 2), num_heads=(1, 2, 2), window_sizes=(4, 4, 4)
    )
    yield Case("timm.TinyVit", SET, build, _pictures(), (f"in:{paths[0]}", *paths))
    paths = staged("stages.{}.blocks.{}", (1, 2))
    mx = of("maxxvit")
    config = mx.MaxxVitCfg(embed_dim=(32, 32), depths=(1, 2), block_type=("C", "T"), stem_width=8, head_hidden_size=16)
    build = lambda: mx.MaxxVit(config, img_size=32, num_classes=C)
    yield Case("timm.MaxxVit as CoAtNet", SET, build, _pictures(), (f"in:{paths[0]}", *paths))


def _languages():
    fast = importlib.import_module("fast_transformer_pytorch")
    small = {"num_tokens": 20, "dim": 16, "depth": 3}

    # branches that are added in turn: what each is given, and what the head is given
    listed = (*(f"in:layers.{i}.{k}" for i in range(3) for k in (0, 1)), "in:to_logits")
    build = partial(fast.FastTransformer, **small, max_seq_len=8, heads=2, dim_head=8, absolute_pos_emb=True)
    yield Case("fast_transformer_pytorch.FastTransformer", SET, build, _masked, listed, "mean")
    rela = importlib.import_module("rela_transformer")
    build = partial(rela.ReLATransformer, **small, max_seq_len=8, heads=2, dim_head=8)
    yield Case("rela_transformer.ReLATransformer", SET, build, _ids, listed, "mean")
    gss = importlib.import_module("gated_state_spaces_pytorch")
    build = partial(gss.GatedStateSpacesLM, **small, dss_kernel_N=4, dss_kernel_H=8)
    yield Case("gated_state_spaces_pytorch.GatedStateSpacesLM", SET, build, _ids, outputs("layers", 3), "mean")
    mega = importlib.import_module("mega_pytorch")
    build = partial(mega.Mega, **small, ema_heads=4, attn_dim_qk=8, attn_dim_value=16)
    sites = ("in:layers.0.0", *(f"layers.{i}.{k}" for i in range(3) for k in (1, 3)))
    yield Case("mega_pytorch.Mega", SET, build, _ids, sites, "mean")


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for found in (_transformers, _timm, _languages):
        try:
            yield from found()
        except ImportError:
            continue
