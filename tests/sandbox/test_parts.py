"""Edits inside an argument's value are changes of that argument, with their line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVER_ARGS = """
import dataclasses

@dataclasses.dataclass
class Phase:
    backend: str = "full"

@dataclasses.dataclass(frozen=True)
class Sealed:
    x: int = 1

@dataclasses.dataclass
class Config:
    decode: Phase
    sealed: Sealed = Sealed()
    limit: int = 0

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    config: object = None
    def __post_init__(self):
        config = Config(Phase())
        config.limit = 7  # nobody's yet
        self.config = config
        self.edit()
        stranger = Phase()
        stranger.backend = "of no argument"
    def edit(self):
        phase = self.config.decode
        phase.backend = "off"  # LINE nested
        self.config.decode = Phase("new")  # LINE part
        self.config.decode.backend = "newer"  # LINE new part
        phase.backend = "still told"
"""
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from casebook_inside import recorder
import sglang.srt.server_args as server_args
recorder.hook_arguments(server_args.ServerArgs)
record = recorder.Recorder(sys.argv[1] + "/sglang")
recorder.activate(record)
args = server_args.ServerArgs("m")
recorder.activate(None)
args.config.limit = 9  # nobody listens
print(json.dumps([e for e in record.events if e["kind"] == "assign"]))
"""


def test_edits_of_parts_are_told_with_their_line(
    in_child: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "site" / "sglang" / "srt"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        (path / "__init__.py").write_text("", "utf-8")
    (folder / "server_args.py").write_text(SERVER_ARGS, "utf-8")
    events = in_child(SCRIPT, str(tmp_path / "site"))
    lines = SERVER_ARGS.splitlines()
    edits = [e for e in events[1:] if e["old"] != e["new"]]
    assert {e["field"] for e in events} == {"config"}
    assert events[0]["new"]["limit"] == 7
    seen = [(lines[e["stack"][0][1] - 1].rpartition("LINE ")[2], e["new"]["decode"]) for e in edits]
    assert seen == [
        ("nested", {"backend": "off"}),
        ("part", {"backend": "new"}),
        ("new part", {"backend": "newer"}),
    ]
