"""Tasks that need no files, drawn from a seed: two that need depth, and the linear one of the papers.

NumPy's `RandomState` is used on purpose: its stream is frozen, so every release draws the same task.
"""

from __future__ import annotations

import numpy as np
import torch

from walkback.data.dataset import Dataset, Split

INPUTS, CLASSES, TRAIN, TEST = 16, 32, 64_000, 8_000
LINEAR_SHARE = 0.9  # of the score's variance
SPREAD = 3.0  # of the inputs: h_0 is then large against what blocks add at their initialisation


def teacher() -> Dataset:
    """Draw a score of 16 normal inputs, nine tenths linear and one tenth quadratic, cut into 32 classes of equal size.

    x = 3z and s = √0.9·⟨w, z⟩ + √0.1·zᵀAz with ‖w‖ = 1, A symmetric and traceless, 2‖A‖² = 1: both parts have
    variance 1. The classes are narrower than the quadratic part is wide: who sees only the linear part is right one
    time in five, and random blocks don't resolve the rest. 64,000 training and 8,000 test samples.

    >>> data = teacher()
    >>> data.input_shape, data.classes, data.train.y.bincount().unique().tolist()
    ((16,), 32, [2000])
    """
    draw = np.random.RandomState(0)
    x = (SPREAD * draw.standard_normal((TRAIN + TEST, INPUTS))).astype(np.float32)
    w, a = draw.standard_normal(INPUTS), draw.standard_normal((INPUTS, INPUTS))
    a = (a + a.T) / 2
    a -= np.eye(INPUTS) * np.trace(a) / INPUTS
    w, a = w / np.linalg.norm(w), a / (np.sqrt(2) * np.linalg.norm(a))  # Var zᵀAz = 2‖A‖²
    z = x.astype(np.float64) / SPREAD
    linear, quadratic = z @ w, ((z @ a) * z).sum(1)
    scores = np.sqrt(LINEAR_SHARE) * linear + np.sqrt(1 - LINEAR_SHARE) * quadratic
    cuts = np.quantile(scores[:TRAIN], np.arange(1, CLASSES) / CLASSES)
    return _split("teacher", x, np.searchsorted(cuts, scores), TRAIN, CLASSES)


def teacher_products() -> Dataset:
    """Draw the largest of ten scores of 32 normal inputs, each seven tenths linear and three tenths a product.

    s_c = √0.7·⟨w_c, z⟩ + √0.3·p_c with p_c = ⟨u_c, z⟩⟨v_c, z⟩ brought to mean 0 and variance 1 over the samples, and
    w_c, u_c, v_c of length 1. 32,000 training and 8,000 test samples: the task of `walkback demo`.

    >>> data = teacher_products()
    >>> data.input_shape, data.classes, len(data.train), len(data.test)
    ((32,), 10, 32000, 8000)
    """
    draw, inputs, classes = np.random.RandomState(0), 32, 10
    z = draw.standard_normal((40_000, inputs))
    w, u, v = (_unit(draw.standard_normal((inputs, classes))) for _ in range(3))
    product = (z @ u) * (z @ v)
    product = (product - product.mean(0)) / product.std(0)
    labels = (np.sqrt(0.7) * (z @ w) + np.sqrt(0.3) * product).argmax(1)
    return _split("teacher-products", z.astype(np.float32), labels, 32_000, classes)


def _unit(columns: np.ndarray) -> np.ndarray:
    """Return the columns of (n, C), each of length 1."""
    return columns / np.linalg.norm(columns, axis=0)


def teacher_linear() -> Dataset:
    """Draw the largest of ten linear scores of 64 standard normal inputs; 10,000 training and 2,000 test samples.

    A linear map solves it, so nothing can be said about depth here: the task of the papers' StudentNet.

    >>> teacher_linear().classes
    10
    """
    draw = np.random.RandomState(1)
    x = draw.standard_normal((12_000, 64)).astype(np.float32)
    labels = (x.astype(np.float64) @ draw.standard_normal((64, 10))).argmax(1)
    return _split("teacher-linear", x, labels, 10_000, 10)


def _split(name: str, x: np.ndarray, y: np.ndarray, train: int, classes: int) -> Dataset:
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    return Dataset(name, Split(inputs[:train], labels[:train]), Split(inputs[train:], labels[train:]), classes)


EMBEDDED = {"teacher": teacher, "teacher-products": teacher_products, "teacher-linear": teacher_linear}
