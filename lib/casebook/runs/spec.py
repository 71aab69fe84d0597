"""What one run is: a notebook and the parameters it is given, and the key that names the pair.

The key is made of all that decides a run's outcome and that we can see: what the notebook's cells
say (not their outputs, so that saving a notebook in JupyterLab changes nothing), the parameters, the
contents of files that parameters name, casebook's version, code and data, and the versions of the
packages that compute. Which SGLang release a run asks is in its parameters and in casebook's data; an
SGLang that is installed beside casebook (live mode) counts too. A record under the same key answers
for the run; anything that changed makes another key.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import casebook
from casebook.paths import data_dir
from casebook.runs import declared

_PACKAGES = ("sglang", "torch", "transformers", "numpy", "pandas")
_LONGEST_VALUE = 40


@dataclass(frozen=True)
class RunSpec:
    """One notebook with one set of parameters; build it with :meth:`of`, which checks them."""

    notebook: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    """How the run is called in files and reports; the notebook's own name if empty."""

    @classmethod
    def of(
        cls, notebook: Path, parameters: dict[str, Any] | None = None, name: str = ""
    ) -> RunSpec:
        """A checked spec; a RunError names the first parameter that is unknown or of wrong type."""
        spec = cls(Path(notebook).resolve(), dict(parameters or {}), name)
        spec.check()
        return spec

    @classmethod
    def from_text(cls, notebook: Path, parameters: dict[str, Any], name: str = "") -> RunSpec:
        """As :meth:`of`, but text is first read as the declared type says (for a command line)."""
        path = Path(notebook).resolve()
        known = declared.declared(declared.read_notebook(path), path)
        read = {
            key: known[key].from_text(value) if key in known and isinstance(value, str) else value
            for key, value in parameters.items()
        }
        return cls.of(path, read, name)

    def check(self) -> None:
        """Raise a RunError unless the notebook can be read and takes these parameters."""
        known = declared.declared(declared.read_notebook(self.notebook), self.notebook)
        declared.check(self.parameters, known, self.notebook)

    @property
    def label(self) -> str:
        """The run's name, or the notebook's."""
        return self.name or self.notebook.stem

    @property
    def given(self) -> str:
        """The parameters in a line, ``gpu=B200, release=0.5.11``; long values are cut."""
        return ", ".join(f"{name}={_cut(value)}" for name, value in self.parameters.items())

    @property
    def notebook_text(self) -> str:
        """The notebook's path within the checkout; where it lies outside, its whole path."""
        root = repo_root()
        inside = self.notebook.is_relative_to(root)
        return (self.notebook.relative_to(root) if inside else self.notebook).as_posix()

    @functools.cached_property
    def title(self) -> str:
        """The notebook's first heading."""
        return declared.title(declared.read_notebook(self.notebook), self.notebook.stem)

    @functools.cached_property
    def key(self) -> str:
        """64 hex digits that name this run; the same in every checkout of the same state."""
        parts = {
            "notebook": notebook_digest(self.notebook),
            "parameters": self.parameters,
            "files": dict(_named_files(self.parameters)),
            "casebook": [casebook.__version__, code_digest()],
            "packages": package_versions(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def slug(self) -> str:
        """``label-key8`` in characters that every file system and URL takes."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label).strip("-.") or "run"
        return f"{plain[:60]}-{self.key[:8]}"


def _cut(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def repo_root() -> Path:
    """The checkout's folder: the working directory of every run."""
    return Path(__file__).resolve().parents[3]


def notebook_digest(path: Path) -> str:
    """SHA-256 of the notebook's cells: kind, tags and text of each."""
    cells = [
        [c.get("cell_type"), c.get("metadata", {}).get("tags", []), declared.source(c)]
        for c in declared.read_notebook(path)["cells"]
    ]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """SHA-256 of casebook's own code and data, once per process."""
    total = hashlib.sha256()
    package = Path(casebook.__file__).parent
    for root, pattern in ((package, "*.py"), (data_dir(), "*")):
        for path in sorted(root.rglob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(root).as_posix()}\0".encode())
                total.update(_file_digest(path).encode())
    return total.hexdigest()


@functools.cache
def package_versions() -> dict[str, str]:
    """The versions of the installed packages that a notebook's figures may hang on."""
    found = {}
    for name in _PACKAGES:
        try:
            # Without +cpu or +cu130: which build of torch it is differs between the nodes of a batch.
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _named_files(value: Any) -> Iterator[tuple[str, str]]:
    """Each text in ``value`` that names a file, with the digest of what the file holds now."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _named_files(item)
    elif isinstance(value, str) and 0 < len(value) < 1024 and "\n" not in value:
        try:
            path = repo_root() / value
            if path.is_file():
                yield value, _file_digest(path)
        except (OSError, ValueError):
            return
