"""Shared set-up: shapes in signatures are checked while the tests run, and one thread keeps runs repeatable."""

from __future__ import annotations

import torch
from jaxtyping import install_import_hook

install_import_hook(["walkback.measure", "walkback.probes"], "beartype.beartype").__enter__()
torch.set_num_threads(1)
