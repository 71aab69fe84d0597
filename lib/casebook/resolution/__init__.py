"""What SGLang does with a launch: its trail, and a verdict for every argument."""

from casebook.resolution.model import (
    Argument,
    Change,
    EnvAccess,
    Failure,
    Frame,
    LogLine,
    Outcome,
    OutcomeKind,
    Verdict,
)
from casebook.resolution.trace import trace
from casebook.resolution.trail import Trail, Why

__all__ = [
    "Argument",
    "Change",
    "EnvAccess",
    "Failure",
    "Frame",
    "LogLine",
    "Outcome",
    "OutcomeKind",
    "Trail",
    "Verdict",
    "Why",
    "trace",
]
