"""What runs inside a child is importable in tests, as it is there."""

import sys

from casebook.sandbox.boot import INSIDE

sys.path.insert(0, str(INSIDE))
