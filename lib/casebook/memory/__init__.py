"""What a launch needs in bytes: plans by the release's own code, sweeps, and what would fit."""

from casebook.memory.dry_run import Device, DryRun, Sizer, dry_run
from casebook.memory.plan import Entry, MemoryPlan, plan
from casebook.memory.recommend import Option, Recommendation, recommend
from casebook.memory.strategies import strategies
from casebook.memory.sweep import Sweep, sweep

__all__ = [
    "Device",
    "DryRun",
    "Entry",
    "MemoryPlan",
    "Option",
    "Recommendation",
    "Sizer",
    "Sweep",
    "dry_run",
    "plan",
    "recommend",
    "strategies",
    "sweep",
]
