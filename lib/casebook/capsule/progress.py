"""One line on stderr while a capsule is built, and nothing when it is already there."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

_DOWNLOADING = re.compile(r"^\s*Downloading (\S+)(?: \((.+)\))?")
_PREPARED = re.compile(r"^\s*Prepared (\d+) package")
_INSTALLED = re.compile(r"^\s*Installed (\d+) package")


def wanted(progress: bool | None) -> bool:
    """Whether to show the line: as asked, or, if not asked, where a person is looking."""
    if progress is not None:
        return progress
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Progress:
    """A bar that counts installed packages, with the present step as its description."""

    def __init__(self, version: str, total: int, show: bool) -> None:
        self._name = f"Capsule {version}"
        self._show = show
        self._total = total
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, what: str) -> None:
        """Say what is being done now."""
        if not self._show:
            return
        if self._bar is None:
            # Made late: on some front ends a bar shows as soon as it exists.
            self._bar = tqdm(
                total=self._total,
                unit="package",
                file=sys.stderr,
                bar_format="{desc} |{bar:20}| {n_fmt}/{total_fmt} packages, {elapsed}",
            )
        self._bar.set_description_str(f"{self._name}: {what}")

    def uv_line(self, line: str) -> None:
        """Take the progress from a line uv printed."""
        if found := _DOWNLOADING.match(line):
            size = f" ({found[2]})" if found[2] else ""
            self.step(f"downloading {found[1]}{size}")
        elif _PREPARED.match(line):
            self.step("installing")
        elif (found := _INSTALLED.match(line)) and self._bar is not None:
            self._bar.update(int(found[1]))
