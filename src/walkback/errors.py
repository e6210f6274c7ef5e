"""The exception family. Every error says what was expected, what arrived, and what to do.

WalkbackError
├── InputError     batches, labels, accuracies, thresholds: what the user handed in
├── AnatomyError   the network's stem, blocks or readout can't be found or read
├── CreditError    the credit signal does not belong to this pass
└── FormatError    a file is missing, damaged or of another version
"""

from __future__ import annotations


class WalkbackError(Exception):
    """Base of every error walkback raises on purpose.

    >>> import walkback as wb
    >>> issubclass(wb.InputError, wb.WalkbackError)
    True
    """


class InputError(WalkbackError, ValueError):
    """What the user handed in can't be measured: batches, labels, accuracies, thresholds."""


class AnatomyError(WalkbackError, ValueError):
    """The residual stream of the network can't be found or read."""


class CreditError(WalkbackError, ValueError):
    """The credit signal has the wrong shape, length or origin."""


class FormatError(WalkbackError, ValueError):
    """A file is missing, damaged, or of a version this release does not read."""
