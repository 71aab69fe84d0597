"""The recorder on toy releases, one in each of SGLang's two styles, on every Python that is here."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

ASSIGNING = {
    "server_args.py": """
import dataclasses, logging, os, warnings
logger = logging.getLogger(__name__)
@dataclasses.dataclass
class ServerArgs:
    model_path: str
    mode: str = "auto"
    size: int = 1
    names: list = dataclasses.field(default_factory=list)
    def __post_init__(self):
        self._private = 1
        self.resolve_mode()
        other = ServerArgs.__new__(ServerArgs)
        other.mode = "not ours"
    def resolve_mode(self):
        if self.mode == "auto":
            self.mode = "fast"  # LINE mode
            logger.warning("mode is %s", self.mode)
            warnings.warn("\\x1b[33mold flag\\x1b[0m")
        if os.environ.get("TOY_SIZE"):
            self.size = int(os.environ["TOY_SIZE"])
        os.environ["TOY_SET"] = "1"
        "TOY_IN" in os.environ
        dict(os.environ.copy())
        logger.error("not %d", "a number")
""",
}
DECLARING = {
    "server_args.py": """
import dataclasses
@dataclasses.dataclass
class ServerArgs:
    model_path: str
    mode: str = "auto"
    size: int = 1
    _input_frozen = False
    def resolve_once(self):
        from sglang.srt.arg_groups import overrides
        overrides.declare_resolution(self, "early", size=2)
        overrides.run_post_process_pass(self, mode_pass)
        self._resolved_overrides += [("late", {"size": 4})]
        self._resolved_overrides.extend([("odd",), ("last", {"size": 5})])
        object.__setattr__(self, "_input_frozen", True)
        try:
            self.mode = "refused"
        except AttributeError:
            pass
    def __setattr__(self, name, value):
        if self._input_frozen and not name.startswith("_"):
            raise AttributeError(name)
        object.__setattr__(self, name, value)
def mode_pass(view):
    if view.mode == "auto":
        return {"mode": "fast"}  # LINE mode
    return {}
""",
    "arg_groups/__init__.py": "",
    "arg_groups/overrides.py": """
def run_post_process_pass(server_args, fn):
    declared = fn(server_args)
    if declared:
        declare_resolution(server_args, fn.__qualname__, **declared)
def declare_resolution(server_args, source, **fields):
    stash = getattr(server_args, "_resolved_overrides", None)
    if stash is None:
        stash = []
        server_args._resolved_overrides = stash
    stash.append((source, dict(fields)))
""",
}
SCRIPT = """
import json, logging, os, sys
sys.path.insert(0, sys.argv[1])
logging.basicConfig(stream=open(os.devnull, "w"))
logging.raiseExceptions = False
import sglang.srt.server_args as module
try:
    import sglang.srt.arg_groups.overrides
except ImportError:
    pass
from casebook_inside import providers, recorder
recorder.hook_arguments(module.ServerArgs)
providers.hook()
recorder.hook_logging()
before = module.ServerArgs("unseen", mode="x")
record = recorder.Recorder(os.path.join(sys.argv[1], "sglang"))
recorder.activate(record)
args = module.ServerArgs("m", size=1)
if hasattr(args, "resolve_once"):
    record.phase = "resolve"
    args.resolve_once()
recorder.activate(None)
count = len(record.events)
logging.getLogger("x").error("after"); os.environ["AFTER"] = "1"; args.__dict__["x"] = 1
declared = getattr(args, "_resolved_overrides", None)
print(json.dumps({
    "events": record.events, "initial": record.initial, "current": record.current,
    "fields": record.fields, "after": len(record.events) - count, "mode": args.mode,
    "declared": None if declared is None else [d[0] for d in declared],
    "plain": None if declared is None else type(__import__("copy").deepcopy(declared)).__name__,
}))
"""


def pythons() -> list[str]:
    """This interpreter, and others of the versions that capsules and live nodes have."""
    found = [sys.executable]
    pyenv = shutil.which("pyenv")
    if pyenv:
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        for version in ("3.10", "3.12", "3.13"):
            matches = sorted(Path(root).glob(f"versions/{version}.*/bin/python"))
            found += [str(path) for path in matches[-1:]]
    return found


def folder(root: Path, files: dict[str, str]) -> str:
    for name, text in {**files, "__init__.py": ""}.items():
        path = root / "site" / "sglang" / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (root / "site" / "sglang" / "__init__.py").write_text("", "utf-8")
    return str(root / "site")


def line_of(files: dict[str, str], mark: str) -> int:
    lines = files["server_args.py"].splitlines()
    return next(n for n, line in enumerate(lines, 1) if mark in line)


def of_kind(seen: Any, kind: str) -> list[Any]:
    return [event for event in seen["events"] if event["kind"] == kind]


@pytest.mark.parametrize("python", pythons())
def test_assignments(in_child: Run, tmp_path: Path, python: str) -> None:
    seen = in_child(SCRIPT, folder(tmp_path, ASSIGNING), python=python, TOY_SIZE="7")
    assert seen["fields"] == ["model_path", "mode", "size", "names"]
    assert seen["initial"] == {"model_path": "m", "mode": "auto", "size": 1, "names": []}
    changes = [(e["field"], e["old"], e["new"]) for e in of_kind(seen, "assign")]
    assert changes == [("mode", "auto", "fast"), ("size", 1, 7)]
    first = of_kind(seen, "assign")[0]
    assert first["stack"][0][:3] == [
        *("srt/server_args.py", line_of(ASSIGNING, "LINE mode"), "resolve_mode")
    ]
    assert [frame[2] for frame in first["stack"]] == ["resolve_mode", "__post_init__"]
    assert seen["mode"] == "fast"
    assert seen["after"] == 0


@pytest.mark.parametrize("python", pythons())
def test_surroundings(in_child: Run, tmp_path: Path, python: str) -> None:
    seen = in_child(SCRIPT, folder(tmp_path, ASSIGNING), python=python, TOY_SIZE="7")
    logs = [(e["level"], e["message"], e["stack"][0][2]) for e in of_kind(seen, "log")]
    assert logs == [
        ("WARNING", "mode is fast", "resolve_mode"),
        ("WARNING", "old flag", "resolve_mode"),
        ("ERROR", "not %d", "resolve_mode"),
    ]
    accesses = [(e["operation"], e["name"], e["old"], e["new"]) for e in of_kind(seen, "env")]
    assert accesses == [
        ("read", "TOY_SIZE", "7", "7"),
        ("read", "TOY_SIZE", "7", "7"),
        ("set", "TOY_SET", "1", "1"),  # an earlier record set it
        ("read", "TOY_IN", None, None),
    ]


@pytest.mark.parametrize("python", pythons())
def test_declarations(in_child: Run, tmp_path: Path, python: str) -> None:
    seen = in_child(SCRIPT, folder(tmp_path, DECLARING), python=python)
    declared = [(e["source"], e["field"], e["old"], e["new"]) for e in of_kind(seen, "declare")]
    # The first is made with a list that the helper itself creates: it must not get lost.
    assert declared == [
        ("early", "size", 1, 2),
        ("mode_pass", "mode", "auto", "fast"),
        ("late", "size", 2, 4),
        ("last", "size", 4, 5),
    ]
    assert seen["declared"] == ["early", "mode_pass", "late", "odd", "last"]
    assert seen["plain"] == "list"
    located = of_kind(seen, "declare")[1]["decided"][0]
    assert located[:3] == ["srt/server_args.py", line_of(DECLARING, "LINE mode"), "mode_pass"]
    assert of_kind(seen, "assign") == []
    assert seen["mode"] == "auto"  # the raw input stays
    assert {event["phase"] for event in of_kind(seen, "declare")} == {"resolve"}
