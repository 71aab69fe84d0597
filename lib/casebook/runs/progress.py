"""What a person sees of a batch while it runs: one bar, and a line for each run that ended."""

from __future__ import annotations

import sys
import threading

from tqdm.auto import tqdm

from casebook.runs.outcome import RunResult
from casebook.runs.spec import RunSpec


class Bar:
    """One bar for the batch: what runs now beside it, a line above it for each run that ended."""

    def __init__(self, total: int, reused: int, shown: bool) -> None:
        # None: no bar where stderr is a file or a pipe; the lines of the runs that ended remain.
        hidden = None if shown else True
        self.bar = tqdm(total=total, initial=reused, unit="run", disable=hidden, file=sys.stderr)
        self.shown = shown
        self.running: dict[str, str] = {}
        self.lock = threading.Lock()
        if reused:
            self._say(f"{reused} of {total} runs unchanged since they last ran; not run again.")

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def starts(self, spec: RunSpec) -> None:
        """A run has started."""
        self._note(spec, spec.label)

    def at(self, spec: RunSpec, cell: int, of: int) -> None:
        """A run has come to a cell."""
        self._note(spec, f"{spec.label} {cell}/{of}")

    def ends(self, result: RunResult) -> None:
        """A run has ended; one line stays on the screen."""
        with self.lock:
            self.running.pop(result.spec.key, None)
            self._say(sentence(result))
            self.bar.set_postfix_str(", ".join(self.running.values()), refresh=False)
            self.bar.update()

    def _note(self, spec: RunSpec, text: str) -> None:
        with self.lock:
            self.running[spec.key] = text
            self.bar.set_postfix_str(", ".join(self.running.values()))

    def _say(self, line: str) -> None:
        if self.shown:
            self.bar.write(line, file=sys.stderr)


def sentence(result: RunResult) -> str:
    """How a run ended, in one line."""
    verdict = (result.verdict or {}).get("state", "")
    what = result.error or (result.verdict or {}).get("headline", "")
    again = f"at attempt {result.attempts}" if result.attempts > 1 else ""
    line = f"{result.state.value:>14}  {result.seconds:6.1f} s  {result.spec.label}"
    return "  ".join(filter(None, [line, result.spec.given, again, verdict, what]))
