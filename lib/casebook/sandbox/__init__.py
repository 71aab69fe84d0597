"""A child process that holds one capsule on one simulated GPU, and answers requests.

``Worker`` is the lab's end of it. What runs inside the child stands in ``inside/`` and imports nothing
from here.
"""

from casebook.sandbox.worker import Limits, Worker

__all__ = ["Limits", "Worker"]
