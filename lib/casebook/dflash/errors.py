"""What can be wrong with a drafter, its data or its training, as errors with one sentence each."""

from __future__ import annotations

from casebook.errors import CasebookError


class DrafterError(CasebookError):
    """A drafter's configuration or checkpoint is missing, damaged or contradicts itself."""


class TargetError(CasebookError):
    """A target model that cannot feed or verify the drafter: other width, too few layers, no head."""


class StoreError(CasebookError):
    """A store of tokens or hidden states that is cut short, damaged or made for another drafter."""


class TrainingError(CasebookError):
    """Training cannot start, or stopped because a number is not finite."""


class NoAnchorError(TrainingError):
    """No sample of the batch has two consecutive supervised tokens."""
