"""What forks are spared changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCRIPT = """
import json, logging, sys
from casebook_inside import thrift

early = logging.getLogger("early.child")
early.isEnabledFor(logging.INFO)
untouched = [logging.getLogger(f"x{n}") for n in range(50)]
thrift.remember_cached_loggers()

def enabled():
    return [logger.isEnabledFor(logging.INFO) for logger in (early, late, logging.root)]

late = logging.getLogger("late")
seen = [enabled()]
for level in (logging.INFO, logging.ERROR):
    logging.basicConfig(level=level, force=True, stream=sys.stderr)
    seen.append(enabled())
early.setLevel(logging.DEBUG)
seen.append(enabled())
logging.disable(logging.CRITICAL)
seen.append(enabled())

visited = []
class Counted(dict):
    def clear(self):
        visited.append(1)
        super().clear()
for logger in untouched:
    logger._cache = Counted()
logging.root.setLevel(logging.INFO)
print(json.dumps({"seen": seen, "visited": len(visited)}))
"""


def test_logging_answers_as_ever_and_visits_fewer_loggers(in_child: Callable[..., Any]) -> None:
    found = in_child(SCRIPT)
    off, on = [False] * 3, [True] * 3
    assert found["seen"] == [off, on, off, [True, False, False], off]
    assert found["visited"] == 0
