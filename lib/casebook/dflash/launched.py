"""What a launch tells the server of its drafter, read from its words or from a script, manifest or log.

Only the flags that a drafter can disagree with: how long a block is, how long a context, over how
many GPUs the drafter's heads are cut. What SGLang makes of the rest is the trail's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from casebook.catalog.models import model
from casebook.dflash.errors import DrafterError
from casebook.errors import UnknownModelError
from casebook.launch import Launch

_ALGORITHM = ("--speculative-algorithm", "--speculative-algo")
_DRAFTER = ("--speculative-draft-model-path", "--speculative-draft-model")
_TARGET = ("--model-path", "--model")
_SHELL_RELEASE = "0.5.23"
"""Whose options a script's words are read by where no release is named."""


@dataclass(frozen=True)
class ServeSettings:
    """The flags of a launch that concern its drafter; None where it has none."""

    draft_tokens: int | None = None
    """``--speculative-num-draft-tokens``; None takes the configuration's block size."""
    context_length: int | None = None
    """``--context-length`` in tokens."""
    tp: int = 1
    """``--tp-size``: the drafter's heads are cut over as many GPUs as the target's."""
    pp: int = 1
    """``--pp-size``: SGLang serves a drafter on 1 only."""

    @classmethod
    def of(cls, launch: Launch) -> ServeSettings:
        """The settings of a launch; DrafterError for one that serves no DFlash drafter."""
        algorithm = launch.value_of(*_ALGORITHM)
        if algorithm is not None and algorithm.upper() != "DFLASH":
            raise DrafterError(
                f"The launch asks for --speculative-algorithm {algorithm}, which serves no DFlash "
                "drafter; write DFLASH, or check the drafter without the launch."
            )
        return cls(
            _number(launch, "--speculative-num-draft-tokens", "--speculative-dflash-block-size"),
            _number(launch, "--context-length"),
            _number(launch, "--tp-size", "--tensor-parallel-size", "--tp") or 1,
            _number(launch, "--pp-size", "--pipeline-parallel-size", "--pp") or 1,
        )


def read_launch(path: Path, directory: Path, release: str | None = None) -> Launch:
    """The server in ``path`` that serves a DFlash drafter: the one in ``directory``, if several do.

    A bash script's shell is run in the sandbox, where there is one. DrafterError if no server of the
    file asks for DFLASH; a LaunchError or SourceError if it cannot be read.
    """
    from casebook.ladder.climb import read_any  # not needed for words
    from casebook.launch.source import read_source

    found = read_any(read_source(path), release=release or _SHELL_RELEASE, run_shell=True)
    servers = [one.launch for one in found.launches if _is_dflash(one.launch)]
    if not servers:
        raise DrafterError(
            f"{path} starts {len(found.launches) or 'no'} server(s), none with "
            "--speculative-algorithm DFLASH; name the file that does, or give the flags behind --."
        )
    named = [launch for launch in servers if _drafter_name(launch) == directory.resolve().name]
    return (named or servers)[0]


def target_of(launch: Launch) -> str | None:
    """The launch's ``--model-path``, if that is a model of the catalog or a directory here."""
    path = launch.value_of(*_TARGET)
    if path is None or Path(path).is_dir():
        return path
    try:
        return model(path).name
    except UnknownModelError:
        return None


def _is_dflash(launch: Launch) -> bool:
    return (launch.value_of(*_ALGORITHM) or "").upper() == "DFLASH"


def _drafter_name(launch: Launch) -> str:
    return Path(launch.value_of(*_DRAFTER) or "").name


def _number(launch: Launch, *flags: str) -> int | None:
    text = launch.value_of(*flags)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise DrafterError(
            f"The launch gives {flags[0]} {text!r}, which is no whole number above 0."
        )
    return number
