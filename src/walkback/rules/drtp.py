"""Direct random target projection: the label alone, carried to every site by its own fixed random matrix."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from walkback.rules.feedback import RandomFeedback
from walkback.rules.rule import place
from walkback.tracing.trace import TrainingPass


class DRTP(RandomFeedback):
    """a_l = −B_lᵀ y with y the one-hot label and B_l fixed, C×d: DFA without the prediction. Options as there.

    No forward pass above a site is needed for its credit, and none shows in it: a sample that the network has learned
    gets the same credit as before.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = DRTP()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> len(wb.measure(net, [(x, y)], credit=rule).cosine), rule.matrices()[0].shape
    (5, torch.Size([3, 16]))
    """

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return one product of the label and B per site; labels that are probabilities are projected as they are."""
        target, matrices = trace.labels, self.matrices()
        if not target.is_floating_point():
            target = nn.functional.one_hot(target, matrices[0].shape[0])
        target = target.to(matrices[0].dtype)
        return self.sized([place(-target @ matrix, h, self.target) for matrix, h in zip(matrices, trace.states)])


ORDER = 7
RULES = {"drtp": DRTP}
