"""What the gradients that are written by hand have in common: they cannot be differentiated again.

torch's own ``once_differentiable`` says so too, by a context manager around every call; a small
drafter's step makes some twenty of these calls and would be a percent slower.
"""

from __future__ import annotations

import torch

from casebook.dflash.errors import TrainingError


def refuse_second_derivative() -> None:
    """Raise TrainingError in a backward pass that is itself recorded (``create_graph=True``)."""
    if torch.is_grad_enabled():
        raise TrainingError(
            "The drafter has no second derivative: call backward without create_graph=True."
        )
