"""What a launch tells the server of its drafter, read from its words or from a script, manifest or log.

Only the flags that a drafter can disagree with: how long a block is, how long a context, over how
many GPUs the drafter's heads are cut. What SGLang makes of the rest is the trail's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from casebook.catalog.models import model
from casebook.catalog.releases import load_releases
from casebook.dflash.errors import DrafterError
from casebook.errors import UnknownModelError
from casebook.launch import Launch
from casebook.launch.given import typed_fields
from casebook.launch.options import options

_DFLASH = "DFLASH"


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
    def of(cls, launch: Launch, release: str | None = None) -> ServeSettings:
        """The settings of a launch of ``release``; DrafterError for one that serves no DFlash drafter."""
        typed = _typed(launch, release)
        algorithm = typed.get("speculative_algorithm", _DFLASH)
        if algorithm.upper() != _DFLASH:
            raise DrafterError(
                f"The launch asks for --speculative-algorithm {algorithm}, which serves no DFlash "
                "drafter; write DFLASH, or check the drafter without the launch."
            )
        return cls(
            _number(typed, "speculative_num_draft_tokens")
            or _number(typed, "speculative_dflash_block_size"),
            _number(typed, "context_length"),
            _number(typed, "tp_size") or 1,
            _number(typed, "pp_size") or 1,
        )


def read_launch(path: Path, directory: Path, release: str | None = None) -> Launch:
    """The server in ``path`` that serves a DFlash drafter: the one in ``directory``, if several do.

    A bash script's shell is run in the sandbox, where there is one. DrafterError if no server of the
    file asks for DFLASH; a LaunchError or SourceError if it cannot be read.
    """
    from casebook.ladder.climb import read_any  # not needed for words
    from casebook.launch.source import read_source

    found = read_any(read_source(path), release=release or _newest(), run_shell=True)
    typed = [(one.launch, _typed(one.launch, release)) for one in found.launches]
    servers = [
        (launch, Path(given.get("speculative_draft_model_path", "")).name)
        for launch, given in typed
        if given.get("speculative_algorithm", "").upper() == _DFLASH
    ]
    if not servers:
        raise DrafterError(
            f"{path} starts {len(found.launches) or 'no'} server(s), none with "
            "--speculative-algorithm DFLASH; name the file that does, or give the flags behind --."
        )
    named = [launch for launch, drafter in servers if drafter == directory.resolve().name]
    return named[0] if named else servers[0][0]


def target_of(launch: Launch, release: str | None = None) -> str | None:
    """The launch's ``--model-path``, if that is a model of the catalog or a directory here."""
    path = _typed(launch, release).get("model_path")
    if path is None or Path(path).is_dir():
        return path
    try:
        return model(path).name
    except UnknownModelError:
        return None


def _typed(launch: Launch, release: str | None) -> dict[str, str]:
    return typed_fields(launch, options(release or _newest()))


def _newest() -> str:
    """Whose options count where no release is named."""
    return max(load_releases().values()).version


def _number(typed: Mapping[str, str], name: str) -> int | None:
    text = typed.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and int(text) > 0):
        raise DrafterError(f"The launch gives {name} {text!r}, which is no whole number above 0.")
    return int(text)
