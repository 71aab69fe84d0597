"""Read a launch from whatever holds it: the kind is told by name and content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from casebook.errors import LaunchError
from casebook.launch.analysis import Analysis, read_shell
from casebook.launch.config_file import read_config
from casebook.launch.dockerfile import read_dockerfile
from casebook.launch.manifests import read_compose, read_kubernetes
from casebook.launch.python_source import read_python
from casebook.launch.slurm import suspicions as slurm_suspicions
from casebook.launch.source import Source, read_source
from casebook.launch.systemd import read_unit

KINDS = (
    "bash",
    "command",
    "dockerfile",
    "compose",
    "kubernetes",
    "systemd",
    "slurm",
    "config",
    "python",
)


def kind_of(source: Source) -> str:
    """The kind of a source, by its name and its text."""
    name, text = source.name.lower(), source.text
    if name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile"):
        return "dockerfile"
    if name.endswith((".service", ".socket")) or re.search(r"(?m)^\[Service\]\s*$", text):
        return "systemd"
    if re.search(r"(?m)^#SBATCH\b", text):
        return "slurm"
    if name.endswith(".py") or re.match(r"#!.*\bpython", text):
        return "python"
    if name.endswith((".yaml", ".yml", ".json")):
        if re.search(r"(?m)^[\s{]*['\"]?services['\"]?\s*:", text):
            return "compose"
        if re.search(r"(?m)^[\s{]*['\"]?(?:apiVersion|containers|kind)['\"]?\s*:", text):
            return "kubernetes"
        return "config"
    if re.search(r"(?m)^FROM\s+\S", text) and re.search(r"(?m)^(?:CMD|ENTRYPOINT|RUN)\s", text):
        return "dockerfile"
    return "bash"


def read(
    source: Source,
    *,
    kind: str | None = None,
    release: str = "0.5.11",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> Analysis:
    """The launches in a source and the findings on them.

    Raises LaunchError for text that is not of its kind, UnknownReleaseError for the release.
    """
    kind = kind or kind_of(source)
    if kind == "dockerfile":
        return read_dockerfile(source, release)
    if kind == "compose":
        return read_compose(source, release)
    if kind == "kubernetes":
        return read_kubernetes(source, release)
    if kind == "systemd":
        return read_unit(source, release)
    if kind == "config":
        return read_config(source, release)
    if kind == "python":
        return read_python(source, release)
    if kind not in ("bash", "slurm", "command"):
        raise LaunchError(f"{kind!r} is no kind of launch; the kinds are {', '.join(KINDS)}.")
    extra = list(slurm_suspicions(source)) if kind == "slurm" else []
    label = {"bash": "bash script", "slurm": "Slurm batch script", "command": "command line"}[kind]
    return read_shell(
        source,
        release=release,
        environment=environment,
        arguments=arguments,
        kind=label,
        extra=extra,
    )


def read_file(
    path: Path | str,
    *,
    kind: str | None = None,
    release: str = "0.5.11",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> Analysis:
    """As :func:`read`, for a file. Raises LaunchError also if it cannot be read as text."""
    return read(
        read_source(path), kind=kind, release=release, environment=environment, arguments=arguments
    )
