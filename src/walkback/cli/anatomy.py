"""`walkback anatomy`."""

from __future__ import annotations

from walkback.cli.options import Flag, Sites, sites_of
from walkback.cli.output import answer, stdout_to_stderr


def anatomy(target: str, *, sites: Sites = (), json: Flag = False) -> int:
    """Show what would be measured on a network: stem, blocks, readout, and what had to be guessed.

    Args:
        target: `module:function` that returns a model, (model, batches), or a dict of `walkback.diagnose` arguments.
            With batches the first one is run, which shows more: shapes, where the readout reads, what blocks return.
        json: Print it as JSON.
    """
    from walkback.audit.target import pictured

    with stdout_to_stderr():
        picture = pictured(target, sites_of(sites))
    answer(picture, json)
    return 0
