"""The ladder: one argument from what was meant to what a running server says, rung by rung."""

from casebook.ladder.ladder import RUNGS, Ladder, build

__all__ = ["RUNGS", "Ladder", "build"]
