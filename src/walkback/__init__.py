"""Walkback: which of your feedback-alignment results would you have to walk back?"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from walkback.version import __version__ as __version__

# The public names and where they live. torch loads with the first of them, not with `import walkback`.
_HOMES = {
    "Anatomy": "walkback.network.anatomy",
    "AnatomyError": "walkback.errors",
    "Certificate": "walkback.training.certify",
    "Bundle": "walkback.training.bundle",
    "CreditError": "walkback.errors",
    "Claim": "walkback.verdict.claim",
    "Depth": "walkback.measures.worth",
    "DiagnosticThresholds": "walkback.verdict.checks",
    "FormatError": "walkback.errors",
    "FreshFeedback": "walkback.measures.probes",
    "InputError": "walkback.errors",
    "Intrinsic": "walkback.measures.precision",
    "Measurements": "walkback.measures.measurements",
    "Nudging": "walkback.measures.probes",
    "Perturbation": "walkback.measures.probes",
    "Report": "walkback.report.report",
    "Trace": "walkback.tracing.session",
    "Tracer": "walkback.tracing.session",
    "TrainingPass": "walkback.tracing.trace",
    "WalkbackError": "walkback.errors",
    "Watch": "walkback.training.watch",
    "RunSpec": "walkback.training.spec",
    "audit": "walkback.audit",
    "certify": "walkback.training.certify_recorded",
    "data": "walkback.data",
    "depth": "walkback.measures.depth",
    "diagnose": "walkback.api",
    "diagnose_arrays": "walkback.arrays",
    "frozen_baseline": "walkback.training.control",
    "judge": "walkback.report.formats.logged",
    "load_bundle": "walkback.training.bundle",
    "lint": "walkback.lint",
    "measure": "walkback.api",
    "nets": "walkback.nets",
    "recorded": "walkback.tracing.recorded",
    "pitfalls": "walkback.pitfalls",
    "rules": "walkback.rules",
    "train": "walkback.training.loop",
    "save_bundle": "walkback.training.bundle",
    "selftest": "walkback.selftest",
}

_MODULES = ("audit", "data", "nets", "pitfalls", "rules", "selftest")

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from walkback import audit as audit
    from walkback import data as data
    from walkback import nets as nets
    from walkback import pitfalls as pitfalls
    from walkback import rules as rules
    from walkback import selftest as selftest
    from walkback.api import diagnose as diagnose
    from walkback.api import measure as measure
    from walkback.arrays import diagnose_arrays as diagnose_arrays
    from walkback.errors import AnatomyError as AnatomyError
    from walkback.errors import CreditError as CreditError
    from walkback.errors import FormatError as FormatError
    from walkback.errors import InputError as InputError
    from walkback.errors import WalkbackError as WalkbackError
    from walkback.lint import lint as lint
    from walkback.measures.depth import depth as depth
    from walkback.measures.measurements import Measurements as Measurements
    from walkback.measures.precision import Intrinsic as Intrinsic
    from walkback.measures.probes import FreshFeedback as FreshFeedback
    from walkback.measures.probes import Nudging as Nudging
    from walkback.measures.probes import Perturbation as Perturbation
    from walkback.measures.worth import Depth as Depth
    from walkback.network.anatomy import Anatomy as Anatomy
    from walkback.report.formats.logged import judge as judge
    from walkback.report.report import Report as Report
    from walkback.tracing.recorded import recorded as recorded
    from walkback.tracing.session import Trace as Trace
    from walkback.tracing.session import Tracer as Tracer
    from walkback.tracing.trace import TrainingPass as TrainingPass
    from walkback.training.bundle import Bundle as Bundle
    from walkback.training.bundle import load_bundle as load_bundle
    from walkback.training.bundle import save_bundle as save_bundle
    from walkback.training.certify import Certificate as Certificate
    from walkback.training.certify_recorded import certify as certify
    from walkback.training.control import frozen_baseline as frozen_baseline
    from walkback.training.loop import train as train
    from walkback.training.spec import RunSpec as RunSpec
    from walkback.training.watch import Watch as Watch
    from walkback.verdict.checks import DiagnosticThresholds as DiagnosticThresholds
    from walkback.verdict.claim import Claim as Claim


class _FrontDoor(ModuleType):
    """`walkback.diagnose` is the function, also after the module of that name has been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _HOMES and name not in _MODULES:
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'walkback' has no attribute {name!r}")
    try:
        module = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        from walkback.errors import TORCH_MISSING, WITH_TORCH, InputError

        if error.name not in WITH_TORCH:
            raise
        raise InputError(TORCH_MISSING) from None
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
