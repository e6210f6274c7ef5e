"""A Lightning run that a Watch stops: direct feedback alignment whose residual stream explodes.

Every block learns from a fixed random projection of the output error (DFA), so nothing keeps its output small. The loss
looks like any other; after a few epochs the gradient that alignment would be compared with is gone. The callback
notices, and a run planned for a hundred epochs ends with most of its compute unspent. Run it with
`python examples/lightning_stopped.py`; it needs `pip install 'walkback[lightning]'`.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import walkback as wb
from walkback.integrations import lightning_callback

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:
    raise SystemExit("This example needs Lightning: pip install 'walkback[lightning]'") from None

# What Lightning says about the machine does not matter here.
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module=r"lightning\.")


class DirectFeedback(pl.LightningModule):
    """Local losses ⟨output, a_l⟩ with a_l = B_lᵀ(softmax − onehot); only the readout sees its true gradient."""

    def __init__(self, net: Any, width: int, classes: int) -> None:
        super().__init__()
        self.net = net
        self.feedback = nn.Buffer(torch.randn(len(net.blocks) + 1, classes, width))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Sum of the readout's loss and every local one."""
        x, y = batch
        written = [self.net.embed(x)]
        h = written[0].detach()
        for block in self.net.blocks:
            written.append(block(h))
            h = h + written[-1].detach()
        logits = self.net.out_head(self.net.out_ln(h))
        error = (logits.softmax(1) - one_hot(y, logits.shape[1])).detach()
        local = [(f * (error @ b)).sum(1).mean() for f, b in zip(written, self.feedback)]
        return cross_entropy(logits, y) + sum(local)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, as for any network."""
        return torch.optim.AdamW(self.parameters(), lr=3e-2)


def main() -> None:
    """Train until trust is lost, and say what that saved."""
    torch.manual_seed(0)
    data = wb.data.load("teacher")
    width = 64
    net = wb.nets.build("resmlp", data.input_shape, data.classes, width=width, depth=4)
    train = torch.utils.data.TensorDataset(data.prepare(data.train.x[:4096]), data.train.y[:4096])
    x, y = data.prepare(data.test.x[:1024]), data.test.y[:1024]
    watching = lightning_callback(list(zip(x.split(128), y.split(128))), every=32, network="net", stop=True)
    trainer = pl.Trainer(
        max_epochs=100,
        callbacks=[watching],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DirectFeedback(net, width, data.classes), torch.utils.data.DataLoader(train, 128, shuffle=True))
    print(watching.watch, end="\n\n")
    print(watching.watch.report(method_name="DFA under Lightning"))


if __name__ == "__main__":
    main()
