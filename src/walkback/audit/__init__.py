"""Many runs: plans of what to train, a store that survives anything, executors, and the evidence they leave."""

from __future__ import annotations

from walkback.audit.plans import Plan, names, plan
from walkback.audit.run import Failure, Outcome, audit

__all__ = ["Failure", "Outcome", "Plan", "audit", "names", "plan"]
