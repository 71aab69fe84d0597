"""Launches: argv and environment as a server process would receive them."""

from casebook.launch.model import Launch
from casebook.launch.secrets import REDACTED, Redactor

__all__ = ["REDACTED", "Launch", "Redactor"]
