"""Direct feedback alignment: the output error, carried to every site by its own fixed random matrix."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from walkback.rules.feedback import RandomFeedback
from walkback.rules.rule import error_signal, place
from walkback.tracing.trace import TrainingPass


class DFA(RandomFeedback):
    """a_l = B_lᵀ e with e = softmax(logits) − onehot and B_l fixed, C×d. Options: see RandomFeedback.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = DFA()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> len(wb.measure(net, [(x, y)], credit=rule).cosine), rule.matrices()[0].shape
    (5, torch.Size([3, 16]))
    """

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return one product of the error and B per site."""
        error = error_signal(trace)
        return self.sized([place(error @ matrix, h, self.target) for matrix, h in zip(self.matrices(), trace.states)])


ORDER = 3
RULES = {"dfa": DFA}
