"""Capsules: any SGLang release, installed without its GPU packages, cached and verified.

``ensure("0.5.11")`` returns a :class:`Capsule`, building it if need be; ``live(python)`` makes one
of a Python that already has SGLang.
"""

from casebook.capsule.live import live
from casebook.capsule.model import Capsule
from casebook.capsule.store import ensure, installed, prune, remove
from casebook.capsule.verify import verify

__all__ = ["Capsule", "ensure", "installed", "live", "prune", "remove", "verify"]
