"""Walkback: which of your feedback-alignment results would you have to walk back?"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# The public names and where they live. torch loads with the first of them, not with `import walkback`.
_HOMES = {
    "Anatomy": "walkback.anatomy",
    "AnatomyError": "walkback.errors",
    "Certificate": "walkback.certify",
    "Bundle": "walkback.training.bundle",
    "CreditError": "walkback.errors",
    "DiagnosticThresholds": "walkback.checks",
    "FormatError": "walkback.errors",
    "FreshFeedback": "walkback.probes",
    "InputError": "walkback.errors",
    "Intrinsic": "walkback.intrinsic",
    "Measurements": "walkback.measure",
    "Nudging": "walkback.probes",
    "Perturbation": "walkback.probes",
    "Report": "walkback.report",
    "Trace": "walkback.trace",
    "Tracer": "walkback.trace",
    "WalkbackError": "walkback.errors",
    "Watch": "walkback.training.watch",
    "RunSpec": "walkback.training.spec",
    "audit": "walkback.audit",
    "certify": "walkback.certify",
    "data": "walkback.data",
    "diagnose": "walkback.diagnose",
    "frozen_baseline": "walkback.training.control",
    "judge": "walkback.judge",
    "load_bundle": "walkback.training.bundle",
    "lint": "walkback.lint",
    "measure": "walkback.diagnose",
    "nets": "walkback.nets",
    "recorded": "walkback.recorded",
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
    from walkback.anatomy import Anatomy as Anatomy
    from walkback.certify import Certificate as Certificate
    from walkback.certify import certify as certify
    from walkback.checks import DiagnosticThresholds as DiagnosticThresholds
    from walkback.diagnose import diagnose as diagnose
    from walkback.diagnose import measure as measure
    from walkback.errors import AnatomyError as AnatomyError
    from walkback.errors import CreditError as CreditError
    from walkback.errors import FormatError as FormatError
    from walkback.errors import InputError as InputError
    from walkback.errors import WalkbackError as WalkbackError
    from walkback.intrinsic import Intrinsic as Intrinsic
    from walkback.judge import judge as judge
    from walkback.lint import lint as lint
    from walkback.measure import Measurements as Measurements
    from walkback.probes import FreshFeedback as FreshFeedback
    from walkback.probes import Nudging as Nudging
    from walkback.probes import Perturbation as Perturbation
    from walkback.recorded import recorded as recorded
    from walkback.report import Report as Report
    from walkback.trace import Trace as Trace
    from walkback.trace import Tracer as Tracer
    from walkback.training.bundle import Bundle as Bundle
    from walkback.training.bundle import load_bundle as load_bundle
    from walkback.training.bundle import save_bundle as save_bundle
    from walkback.training.control import frozen_baseline as frozen_baseline
    from walkback.training.loop import train as train
    from walkback.training.spec import RunSpec as RunSpec
    from walkback.training.watch import Watch as Watch


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
    module = import_module(_HOMES[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
