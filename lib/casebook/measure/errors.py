"""What can be wrong with a log or with the published measurements, one sentence each."""

from __future__ import annotations

from casebook.errors import CasebookError


class LogError(CasebookError):
    """A file that cannot be read as a server's log, or holds no line of an SGLang server."""


class ForeignLogError(LogError):
    """The log of another server; ``server`` names the one it seems to be."""

    def __init__(self, name: str, server: str, line: int) -> None:
        self.server, self.line = server, line
        super().__init__(
            f"{name} seems to be a log of {server} (line {line}), not of SGLang; give the log of the "
            "SGLang server."
        )


class MeasurementError(CasebookError):
    """A measurement that lacks the figures a question needs."""
