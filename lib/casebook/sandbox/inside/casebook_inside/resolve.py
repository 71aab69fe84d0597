"""Resolve one launch with SGLang's own code, and tell everything that was recorded on the way.

The three phases are SGLang's: *parse* (``prepare_server_args``, which in older releases also
resolves), *resolve* (``resolve_once``, where the release has it) and *check* (``check_server_args``,
which the engine calls before it starts processes).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import traceback
from typing import Any

from casebook_inside import cmdline, providers, recorder, template, thrift
from casebook_inside.encode import encode, record_field_names

MAX_CAUSES = 8
MAX_MESSAGE = 8000


def prepare() -> None:
    """Import SGLang and install the hooks; once per process, before any launch."""
    import sglang.srt.server_args as server_args

    # 0.5.15 on: the providers must be hooked before they run.
    with contextlib.suppress(ImportError):
        importlib.import_module("sglang.srt.arg_groups.overrides")
    recorder.hook_arguments(server_args.ServerArgs)
    providers.hook()
    recorder.hook_logging()
    cmdline.hook_argparse()


def prepare_forks() -> None:
    """What only pays where many launches are forked from this process; after ``prepare``."""
    import sglang
    import sglang.srt.server_args as server_args

    template.install(server_args.ServerArgs, _root(sglang))
    thrift.remember_cached_loggers()
    thrift.ready_hub_client()


def _root(package: Any) -> str:
    """The folder of the ``sglang`` package."""
    return os.path.dirname(os.path.abspath(package.__file__))


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Resolve ``request["argv"]`` (the words after the entry point) and return the raw record."""
    import sglang
    import sglang.srt.server_args as server_args

    # Seeds and free ports are drawn at random; the same launch must give the same trail.
    random.seed(0)
    # Only a warm-up asks: going through all modules costs milliseconds of copied pages.
    before = set(sys.modules) if request.get("list_imports") else set()
    # A sweep wants the end and not the way.
    record = recorder.Recorder(_root(sglang), only=request.get("fields"))
    line = cmdline.CommandLine()
    cmdline.watch(line)
    recorder.activate(record)
    outcome: dict[str, Any] = {"kind": "resolved"}
    args: Any = None
    try:
        args = server_args.prepare_server_args(list(request["argv"]))
        if not record.fields:  # a msgspec struct is filled without __setattr__
            record.fields = record_field_names(type(args))
        if record.main is None:
            record.main = args
        for name in record.fields:
            if name not in record.initial and (record.only is None or name in record.only):
                record.initial[name] = encode(_initial(args, name))
                record.current.setdefault(name, record.initial[name])
        if hasattr(args, "resolve_once"):
            record.phase = "resolve"
            args.resolve_once()
        record.phase = "check"
        if hasattr(args, "check_server_args"):
            args.check_server_args()
    except SystemExit as stop:
        outcome = {"kind": "exit", "code": exit_code(stop)}
        if stop.code is not None and not isinstance(stop.code, int):
            outcome["message"] = text_of(stop.code)
    except BaseException as error:  # whatever SGLang raises is the answer, not a fault of ours
        outcome = {"kind": "raised", **describe(error, record)}
    finally:
        recorder.activate(None)
        cmdline.watch(None)
    owner = record.main if args is None else args
    if "fields" in request:
        record.fields = [name for name in record.fields if name in request["fields"]]
        final = _final(owner, record) if owner is not None else {}
        refusal = {"refusal": line.refusal} if line.refusal else {}
        return {
            "outcome": outcome,
            "command_line": refusal,
            "final": {name: final.get(name) for name in request["fields"]},
        }
    return {
        "outcome": outcome,
        "phase": record.phase,
        "command_line": line.as_record(),
        "fields": record.fields,
        "initial": record.initial,
        "final": _final(owner, record) if owner is not None else {},
        "fallbacks": _fallbacks(owner, record) if owner is not None else [],
        "events": record.events,
        "imported": [name for name in list(sys.modules) if name not in before] if before else [],
    }


def exit_code(stop: SystemExit) -> int:
    """The code that a process ends with that raises ``stop``: 0 for none, 1 for a message."""
    if stop.code is None:
        return 0
    return int(stop.code) & 0xFF if isinstance(stop.code, int) else 1


def describe(
    error: BaseException, record: recorder.Recorder, depth: int = MAX_CAUSES
) -> dict[str, Any]:
    """Type, message and SGLang's frames (outermost first) of an exception and of its causes."""
    frames = [
        [relative, frame.lineno, frame.name]
        for frame in traceback.extract_tb(error.__traceback__)
        if (relative := record.relative(frame.filename)) is not None
    ]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return {
        "type": type(error).__name__,
        "message": text_of(error),
        "frames": frames,
        "cause": describe(cause, record, depth - 1) if cause is not None and depth else None,
    }


def text_of(value: Any) -> str:
    """``str(value)``, whatever a foreign ``__str__`` may do, and not endless."""
    try:
        return str(value)[:MAX_MESSAGE]
    except Exception as error:
        return f"<str failed: {type(error).__name__}>"


def _initial(args: Any, name: str) -> Any:
    raw = getattr(args, "_raw_input", None)
    return raw[name] if raw is not None and name in raw else getattr(args, name, None)


def _fallbacks(args: Any, record: recorder.Recorder) -> list[str]:
    """Fields that nobody decided: the release's reader puts a declared fallback for an unset one."""
    if not hasattr(args, "_raw_input"):
        return []
    declared = {e["field"] for e in record.events if e["kind"] == "declare"}
    return [name for name in record.fields if name not in declared]


def in_effect(args: Any, name: str) -> Any:
    """One argument of a resolved launch, by the release's own reader where it has one."""
    reader = _reader(args)
    return getattr(args, name, None) if reader is None else _read(reader, args, name)


def _reader(args: Any) -> Any:
    """0.5.20 on: the function that tells a resolved argument; the object keeps what was typed."""
    overrides = sys.modules.get("sglang.srt.arg_groups.overrides")
    return getattr(overrides, "resolution_result", None) if hasattr(args, "_raw_input") else None


def _final(args: Any, record: recorder.Recorder) -> dict[str, Any]:
    """The value in effect per field, by the release's own reader where it has one."""
    overrides = sys.modules.get("sglang.srt.arg_groups.overrides")
    reader = _reader(args)
    if reader is None:
        values = {name: encode(getattr(args, name, None)) for name in record.fields}
        # 0.5.15 to 0.5.19: until the stash is materialised, a declaration outranks the attribute.
        materialises = hasattr(overrides, "materialize_declarations")
        if materialises and not getattr(args, "_declarations_materialized", False):
            values.update({k: v for k, v in record.current.items() if k in values})
        return values
    return {name: encode(_read(reader, args, name)) for name in record.fields}


def _read(reader: Any, args: Any, name: str) -> Any:
    try:
        return reader(args, name)
    except Exception:  # a record that was refused half-way is not readable in all its parts
        return getattr(args, name, None)
