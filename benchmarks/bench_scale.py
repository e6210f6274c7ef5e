"""What a diagnosis costs on a transformer, as a ratio to one training step's forward and backward pass, by depth.

Prints the numbers of docs/scale.md: processor time of one thread, best of interleaved rounds, so that a busy neighbour
hardly counts. The cost of one more block is the slope over the depths.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb

WIDTH, TOKENS, BATCH, VOCABULARY = 256, 128, 4, 512
DEPTHS = (2, 6)


class Decoder(nn.Module):
    """A pre-LN causal transformer: token embedding, blocks that return the new state, norm, head."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) tokens to logits (B, T, V)."""
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(h))


def times(depth: int, rounds: int = 4) -> dict[str, float]:
    """Seconds per batch of a training pass, of the bare states and gradients, and of measuring."""
    torch.manual_seed(0)
    model = Decoder(depth).eval()
    tokens = torch.randint(VOCABULARY, (4, BATCH, TOKENS))
    batches = [(tokens[0], tokens[1]), (tokens[2], tokens[3])]
    feedback = [torch.randn(VOCABULARY, WIDTH) for _ in range(depth + 1)]

    def training() -> None:
        for x, y in batches:
            F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            model.zero_grad()

    def bare() -> None:
        states: list[Tensor] = []
        hooks = [b.register_forward_pre_hook(lambda m, args: states.append(args[0])) for b in model.blocks]
        hooks.append(model.norm.register_forward_pre_hook(lambda m, args: states.append(args[0])))
        for x, y in batches:
            states.clear()
            torch.autograd.grad(F.cross_entropy(model(x).flatten(0, 1), y.flatten()), states)
        for hook in hooks:
            hook.remove()

    def dfa(trace: wb.Trace) -> list[Tensor]:
        error = trace.logits.softmax(-1) - F.one_hot(trace.labels, VOCABULARY)
        return [error @ b for b in feedback]

    tasks: dict[str, Callable[[], object]] = {
        "training": training,
        "bare": bare,
        "measure": lambda: wb.measure(model, batches),
        "with credit": lambda: wb.measure(model, batches, credit=dfa),
    }
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            start = time.thread_time()
            task()
            best[name] = min(best[name], (time.thread_time() - start) / len(batches))
    return best


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; d={WIDTH}, {TOKENS} tokens, batch {BATCH}, expansion 4")
    found = {depth: times(depth) for depth in DEPTHS}
    for depth, seconds in found.items():
        ratios = ", ".join(f"{name} {s / seconds['training']:.2f}x" for name, s in seconds.items())
        print(f"  L={depth}: training pass {1e3 * seconds['training']:.0f} ms per batch; {ratios}")
    first, last = DEPTHS
    slopes = {name: (found[last][name] - found[first][name]) / (last - first) for name in found[last]}
    ratios = ", ".join(f"{name} {s / slopes['training']:.2f}x" for name, s in slopes.items())
    print(f"  one more block: training pass {1e3 * slopes['training']:.1f} ms; {ratios}")


if __name__ == "__main__":
    main()
