"""A JAX user's log through `judge`: all that walkback needs is a CSV with norms per site.

A residual network learns by direct feedback alignment, in a framework walkback knows nothing of, and its loop writes
one line per epoch: ‖h_l‖ and ‖g_l‖ of every site, and the accuracy. (Here the framework is NumPy, so that the example
runs without JAX; with JAX the loop would log the same columns, with `jax.grad` in place of `gradients`.) Afterwards
`walkback judge history.csv --frozen-acc …` says what the numbers are worth, when that could have been known, and how
much of the run was left. Run it with `python examples/jax_csv.py`.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np

import walkback as wb

WIDTH, DEPTH, CLASSES, BATCH, EPOCHS = 32, 3, 4, 256, 12
Weights = dict[str, np.ndarray]


def norm(h: np.ndarray) -> np.ndarray:
    """(B, d) to (B, 1)."""
    return np.linalg.norm(h, axis=1, keepdims=True)


def unit(h: np.ndarray) -> np.ndarray:
    """Normalisation, (B, d) to (B, d): what a LayerNorm does to the length of a state."""
    return np.sqrt(h.shape[1]) * h / norm(h)


def unit_back(h: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The gradient at h from the one at unit(h): divided by ‖h‖, which is how a large stream hides it."""
    direction = h / norm(h)
    return np.sqrt(h.shape[1]) / norm(h) * (g - direction * (g * direction).sum(1, keepdims=True))


def forward(w: Weights, x: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """(B, inputs) to states h_0…h_L, hidden activations, and softmax outputs (B, C)."""
    states, hidden = [x @ w["stem"]], []
    for first, second in zip(w["first"], w["second"]):
        hidden.append(np.maximum(unit(states[-1]) @ first, 0.0))
        states.append(states[-1] + hidden[-1] @ second)
    logits = unit(states[-1]) @ w["head"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    return states, hidden, p / p.sum(1, keepdims=True)


def gradients(w: Weights, states: list[np.ndarray], hidden: list[np.ndarray], error: np.ndarray) -> list[np.ndarray]:
    """The true g_0…g_L, from the last site down: what the credit is compared with."""
    found = [unit_back(states[-1], error @ w["head"].T)]
    for level in reversed(range(DEPTH)):
        inner = (found[0] @ w["second"][level].T) * (hidden[level] > 0)
        found.insert(0, found[0] + unit_back(states[level], inner @ w["first"][level].T))
    return found


def train(x: np.ndarray, y: np.ndarray, test: tuple[np.ndarray, np.ndarray], frozen: bool) -> list[dict[str, float]]:
    """One logged row per epoch; `frozen` leaves the blocks at their random initialisation."""
    rng = np.random.default_rng(0)
    w: Weights = {
        "stem": rng.normal(size=(x.shape[1], WIDTH)) / np.sqrt(x.shape[1]),
        "first": rng.normal(size=(DEPTH, WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "second": 0.3 * rng.normal(size=(DEPTH, WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "head": rng.normal(size=(WIDTH, CLASSES)) / WIDTH,
    }
    feedback = rng.normal(size=(DEPTH + 1, CLASSES, WIDTH))
    rows = []
    for epoch in range(1, EPOCHS + 1):
        for batch in np.split(rng.permutation(len(x)), len(x) // BATCH):
            states, hidden, p = forward(w, x[batch])
            error = p - np.eye(CLASSES)[y[batch]]
            credits = error @ feedback / BATCH  # (sites, B, d): the same error, projected
            w["head"] -= 0.1 * unit(states[-1]).T @ error / BATCH
            w["stem"] -= 0.1 * x[batch].T @ credits[0]
            for level in range(0 if frozen else DEPTH):
                inner = (credits[level + 1] @ w["second"][level].T) * (hidden[level] > 0)
                w["second"][level] -= 0.1 * hidden[level].T @ credits[level + 1]
                w["first"][level] -= 0.1 * unit(states[level]).T @ inner
        states, hidden, p = forward(w, test[0])
        grads = gradients(w, states, hidden, p - np.eye(CLASSES)[test[1]])
        rows.append(
            {
                "epoch": epoch,
                **{f"h_norm_{site}": float(norm(h).mean()) for site, h in enumerate(states)},
                **{f"g_norm_{site}": float(norm(g).mean()) / BATCH for site, g in enumerate(grads)},
                "g_norm_batch_size": BATCH,  # norms of a mean loss shrink with the batch: say which it was
                "test_acc": float((p.argmax(1) == test[1]).mean()),
            }
        )
    return rows


def main() -> None:
    """Train, log, and judge the log."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4096 + 1024, 16))
    teacher = rng.normal(size=(16, 64)), rng.normal(size=(64, CLASSES))
    y = (np.maximum(x @ teacher[0], 0.0) @ teacher[1]).argmax(1)
    split = x[:4096], y[:4096], (x[4096:], y[4096:])
    frozen_acc = train(*split, frozen=True)[-1]["test_acc"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.csv"
        rows = train(*split, frozen=False)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(path.read_text().splitlines()[0])
        print(wb.judge(path, frozen_baseline_acc=frozen_acc, method_name="DFA, logged elsewhere"))


if __name__ == "__main__":
    main()
