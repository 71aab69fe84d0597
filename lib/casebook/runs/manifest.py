"""The manifest of a batch: one line of JSON a run, what it is and, once known, how it ended.

It is written before anything starts. A line alone is enough to do its run: a Slurm array, an indexed
Kubernetes Job or a Dask worker takes line i and needs nothing else from the batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from casebook.errors import RunError
from casebook.runs.files import write_text
from casebook.runs.outcome import RunResult
from casebook.runs.spec import RunSpec, repo_root

MANIFEST = "manifest.jsonl"


def line(spec: RunSpec, result: RunResult | None = None) -> dict[str, Any]:
    """What the manifest says of a run; ``state`` is None until it has ended."""
    return {
        "key": spec.key,
        "notebook": spec.notebook_text,
        "parameters": spec.parameters,
        "name": spec.name,
        "state": result.state.value if result else None,
        "verdict": (result.verdict or {}).get("state") if result else None,
        "seconds": round(result.seconds, 3) if result else None,
        "attempts": result.attempts if result else None,
        "error": result.error if result else None,
    }


def write(path: Path, specs: Sequence[RunSpec], results: Mapping[str, RunResult]) -> None:
    """Write the manifest whole; ``results`` are those that are known, by key."""
    unique = {spec.key: spec for spec in specs}
    lines = [{"index": i} | line(s, results.get(k)) for i, (k, s) in enumerate(unique.items())]
    write_text(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a manifest; a RunError says which line is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"The manifest {str(path)!r} cannot be read ({error}).") from error
    found = []
    for number, words in enumerate(text.splitlines(), 1):
        try:
            each = json.loads(words)
            if not (isinstance(each["notebook"], str) and isinstance(each["parameters"], dict)):
                raise KeyError
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"Line {number} of {path.name} is no run: it needs key, notebook and parameters; "
                "let 'casebook run --plan FILE' write a manifest."
            ) from error
        found.append(each)
    return found


def pick(path: Path, index: int) -> dict[str, Any]:
    """Line ``index`` of a manifest, counted from 0 as array jobs count."""
    lines = read(path)
    if not 0 <= index < len(lines):
        raise RunError(
            f"{path.name} has {len(lines)} lines, so the index is 0 to {len(lines) - 1}, not {index}."
        )
    return lines[index]


def spec_of(line: Mapping[str, Any]) -> RunSpec:
    """The run that a line names, checked against the notebook as it is here.

    A RunError if it would not be the run that was planned: the record would stand under the key of
    another state of the code.
    """
    spec = RunSpec.of(repo_root() / line["notebook"], line["parameters"], line.get("name", ""))
    if line.get("key", spec.key) != spec.key:
        raise RunError(
            f"{spec.label} was planned with another state of the notebook, of casebook or of its "
            "packages than this machine has; bring both to one commit and set-up, or plan again."
        )
    return spec
