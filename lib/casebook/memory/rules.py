"""How each release divides the memory that the weights leave, by name.

SGLang changed the division several times. Each change has a name here, and a release's rules are the
names that hold for it. The vectorised closed form knows what a name means; the dry run, which is the
release's own code, proves it (``tests/memory/test_closed_form.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from casebook.errors import MemoryPlanError

Budget = Literal["intermediate first", "joint", "joint with padding"]
"""``intermediate first``: speculative intermediate states for every request that was asked for come off, then the
slots get their share. ``joint``: share = slots and the intermediate states of as many requests as the slots can
serve. ``joint with padding``: the same, and the padding row of both is counted, too."""

Requests = Literal["table of 2048 to 4096", "flag or estimate", "half the tokens"]
"""What bounds the requests beside the slots: ``table of 2048 to 4096``: nothing but the flag;
``flag or estimate``: also 512 per context that fits, at least 2048; ``half the tokens``: two tokens."""


@dataclass(frozen=True)
class Rules:
    """The rules of one release."""

    release: str
    budget: Budget
    requests: Requests
    draft_counted: bool
    """Whether the draft's weights are loaded before the pools are sized."""
    refuses_empty_rest: bool
    """Whether it says "Loaded weights leave no GPU memory" when nothing is left (0.5.14 on)."""
    refuses_no_slots: bool
    """Whether it says so when no slot or no request fits (0.5.13 on); before, an assertion behind the
    pools did."""
    radix_off_default_slots: int | None
    """Slots without radix cache and without a request limit; None: by share."""
    at_least_one_request: bool
    """Whether a limit below the DP size still gives each worker one request (0.5.23 on)."""


def rules_of(release: str) -> Rules:
    """The rules of a release. Raises MemoryPlanError for one that was never checked."""
    version = Version(release)
    if not Version("0.5.8.post1") <= version <= Version("0.5.23"):
        raise MemoryPlanError(
            f"The closed form was checked on SGLang 0.5.8.post1 to 0.5.23, not on {release}; "
            "use the dry run, which runs that release's own code."
        )

    def since(text: str) -> bool:
        return version >= Version(text)

    budget: Budget = "intermediate first"
    if since("0.5.17"):
        budget = "joint with padding"
    elif since("0.5.13"):
        budget = "joint"
    requests: Requests = "table of 2048 to 4096"
    if since("0.5.14"):
        requests = "half the tokens"
    elif since("0.5.10"):
        requests = "flag or estimate"
    return Rules(
        release=release,
        budget=budget,
        requests=requests,
        draft_counted=since("0.5.14"),
        refuses_empty_rest=since("0.5.14"),
        refuses_no_slots=since("0.5.13"),
        radix_off_default_slots=None if since("0.5.9") else 512,
        at_least_one_request=since("0.5.23"),
    )
