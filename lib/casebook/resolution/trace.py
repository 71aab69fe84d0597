"""``trace(launch)``: resolve a launch with a release's own code and return its trail."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from casebook import capsule as capsules
from casebook.capsule import Capsule
from casebook.catalog.flags import advice
from casebook.catalog.gpus import GpuProfile
from casebook.catalog.gpus import gpu as find_gpu
from casebook.catalog.hub import materialise_checkpoint
from casebook.catalog.models import ModelFacts, load_models, read_checkpoint
from casebook.catalog.models import model as find_model
from casebook.errors import UnknownModelError
from casebook.launch import Launch, Redactor
from casebook.paths import cache_dir
from casebook.resolution import interpret, pool
from casebook.resolution.config_notes import config_notes, words_from_file
from casebook.resolution.guards import guard_of
from casebook.resolution.model import Change, EnvAccess, same
from casebook.resolution.trail import Trail
from casebook.resolution.verdicts import ignored_config, judge, outcome_of
from casebook.sandbox import Limits
from casebook.sandbox.boot import is_reserved

_MODEL_OPTIONS = ("--model-path", "--model")
# Not files on this machine: SGLang's own words for "no model".
_NO_MODEL = frozenset({"none", "dummy"})


def trace(
    launch: Launch | str | Sequence[str],
    *,
    release: str = "0.5.11",
    gpu: str | GpuProfile = "B200",
    model: str | Path | ModelFacts | None = None,
    gpus: int | None = None,
    intended: Launch | str | Sequence[str] | None = None,
    capsule: Capsule | None = None,
    limits: Limits | None = None,
) -> Trail:
    """Resolve ``launch`` on ``release`` with a simulated ``gpu`` and return its trail.

    ``model`` names the facts to use (a name of the catalog, or a local checkpoint directory) where
    the launch's own ``--model-path`` is neither; ``gpus`` the number of devices (default: a node's);
    ``intended`` a launch that was meant, so that what it has more is reported as lost; ``capsule``
    replaces ``release`` (live mode: ``casebook.capsule.live``).

    Raises UnknownReleaseError, UnknownGpuError, UnknownModelError, ModelConfigError, LaunchError,
    CapsuleError or WorkerError. What SGLang itself says of the launch is in ``Trail.outcome``.
    """
    launch = Launch.of(launch)
    profile = gpu if isinstance(gpu, GpuProfile) else find_gpu(gpu)
    held = capsule or _capsule(release)
    stage = _Stage(launch, (), "as installed") if held.live else set_stage(launch, model)
    device = profile.as_device(gpus or profile.devices_per_node)
    env = {name: value for name, value in launch.env.items() if not is_reserved(name)}
    left_out = sorted(set(launch.env) - set(env))
    worker = pool.worker(held, device, env, warm_with=stage.launch.argv)
    raw = worker.call("resolve", limits, argv=list(stage.launch.argv), env=env, cwd=str(Path.cwd()))
    notes = list(stage.notes)
    preset = [name for name, _ in profile.environment or () if name not in env]
    if preset and not held.live:
        notes.append(f"As SGLang's images for {profile.id} do, {', '.join(preset)} are set.")
    if left_out:
        notes.append(
            f"The sandbox sets {', '.join(left_out)} itself; the launch's value is not used."
        )
    notes += config_notes(launch, held.release)
    meant = Launch.of(intended) if intended is not None else None
    return build_trail(
        stage.restore(raw),
        launch,
        worker.package,
        release=held.release,
        gpu="the GPUs of that installation"
        if held.live
        else f"{profile.device_name} × {device['count']}",
        model=stage.model,
        notes=tuple(notes),
        intended=meant,
    )


@lru_cache(maxsize=64)
def _capsule(release: str) -> Capsule:
    """The capsule of a release, verified once per process and not once per launch."""
    return capsules.ensure(release)


@dataclass(frozen=True)
class _Stage:
    """A launch as the child gets it, and how to give its answer the launch's own names back."""

    launch: Launch
    names: tuple[tuple[str, str], ...]
    """``(name in the child, name as typed)``."""
    model: str
    notes: tuple[str, ...] = ()

    def restore(self, value: Any) -> Any:
        """``value`` with each stand-in's name replaced by the one that was typed."""
        if not self.names:
            return value
        if isinstance(value, str):
            for inside, typed in self.names:
                value = value.replace(inside, typed)
            return value
        if isinstance(value, dict):
            return {key: self.restore(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.restore(item) for item in value]
        return value


def set_stage(launch: Launch, model: str | Path | ModelFacts | None = None) -> _Stage:
    """Decide which model facts a launch gets, and under which name the child finds them.

    A name of the catalog stays as typed: the child's hub cache holds its configuration. A local
    checkpoint is copied, its JSON files only: the copy cannot run code, whatever
    ``--trust-remote-code`` says.
    """
    typed = launch.value_of(*_MODEL_OPTIONS)
    if typed is None:
        # Left to SGLang: argparse asks for it, or a --config file gives it.
        return _Stage(launch, (), "no model given")
    if model is None and typed.lower() in _NO_MODEL:
        return _Stage(launch, (), typed)
    facts = model_facts(typed, model)
    known = load_models().get(facts.name)
    own_code = "--trust-remote-code" in launch.argv and "auto_map" in facts.config()
    if known is facts and typed == facts.name and not own_code:
        return _Stage(launch, (), facts.name)
    inside = facts.name
    if known is not facts or own_code:
        inside = str(_checkpoint_copy(facts, without_code=own_code))
    notes: tuple[str, ...] = ()
    if facts.name != typed and facts.directory is None:
        notes += (f"The configuration of {facts.name} stands in for {typed}.",)
    if own_code:
        notes += (
            "The checkpoint's own configuration code is not run; SGLang's class for its model type "
            "reads the configuration instead.",
        )
    return _Stage(launch.replacing(typed, inside), ((inside, typed),), facts.name, notes)


def model_facts(typed: str, model: str | Path | ModelFacts | None = None) -> ModelFacts:
    """The facts that stand for a model path as typed, or for ``model`` where that is given.

    Raises UnknownModelError or ModelConfigError.
    """
    if isinstance(model, ModelFacts):
        return model
    if isinstance(model, Path) or (model is not None and Path(model).is_dir()):
        return read_checkpoint(Path(model))
    if model is not None:
        return find_model(model)
    if Path(typed).is_dir():
        return read_checkpoint(Path(typed))
    try:
        return find_model(typed)
    except UnknownModelError:
        if not _is_path(typed):
            raise
    try:  # /models/Qwen3.6-27B on some other machine
        return find_model(Path(typed).name)
    except UnknownModelError:
        raise UnknownModelError(
            "model",
            typed,
            load_models(),
            "That directory is not on this machine; name the model whose configuration it holds "
            "(--model, or model=).",
        ) from None


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1


def _checkpoint_copy(facts: ModelFacts, without_code: bool = False) -> Path:
    """A directory with the JSON files of ``facts``; ``without_code`` takes out what names code."""
    if without_code:
        facts = facts.without_own_code()
    text = json.dumps([facts.config(), facts.hf_quant_config()], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = cache_dir() / "checkpoints" / digest
    materialise_checkpoint(facts, folder)
    return folder


def build_trail(
    raw: dict[str, Any],
    launch: Launch,
    package: Path,
    *,
    release: str,
    gpu: str,
    model: str,
    notes: tuple[str, ...] = (),
    intended: Launch | None = None,
) -> Trail:
    """Interpret a child's raw answer. ``package`` is the folder of the ``sglang`` that ran."""
    raw = Redactor.of(launch).value(raw)
    reader = interpret.Reader(package)
    line = raw.get("command_line", {})
    events = raw.get("events", [])
    failure = (
        interpret.failure_of(raw["outcome"], reader) if raw["outcome"]["kind"] == "raised" else None
    )
    outcome = outcome_of(raw["outcome"], line, failure, partial(advice, release=release))
    safe = Launch(tuple(Redactor.of(launch).words(launch.argv)), launch.env, launch.entry)
    typed = interpret.typed_arguments(line, safe)
    by_field = interpret.changes(events, reader)
    flags = _flags_by_field(line)
    guard = guard_of(failure, reader, raw.get("fields") or ())
    arguments = []
    for field in raw.get("fields") or []:
        options = flags.get(field, [])
        parsed, final = raw["initial"].get(field), raw["final"].get(field)
        kind = "fallback" if field in raw.get("fallbacks", ()) else "in place"
        steps = _with_unseen(by_field.get(field, []), parsed, final, raw["phase"], kind)
        meant = interpret.words_of(intended.argv, options) if intended and options else []
        arguments.append(
            judge(
                field,
                options,
                typed.get(field),
                parsed,
                steps,
                final,
                outcome,
                intended=meant[-1] if meant else None,
                guard=guard,
            )
        )
    notes = (*notes, *words_from_file(line, launch))
    if "config" in typed and "config" not in raw.get("fields", ()):
        arguments.append(ignored_config(typed["config"]))
    return Trail(
        launch=launch,
        release=release,
        gpu=gpu,
        model=model,
        outcome=outcome,
        arguments=tuple(arguments),
        environment=_environment(events, reader, launch.env, Redactor.of(launch)),
        log=tuple(interpret.log_lines(events, reader)),
        output=raw.get("output", ""),
        notes=notes,
        seconds=raw.get("seconds", 0.0),
    )


def _environment(
    events: list[dict[str, Any]],
    reader: interpret.Reader,
    given: Mapping[str, str],
    redact: Redactor,
) -> tuple[EnvAccess, ...]:
    return tuple(
        EnvAccess(
            e.name,
            e.operation,
            None if e.value is None else redact.env(e.name, e.value),
            e.given,
            e.frame,
        )
        for e in interpret.env_accesses(events, reader, given)
        if not is_reserved(e.name)
    )


def _flags_by_field(line: dict[str, Any]) -> dict[str, list[str]]:
    renamed = line.get("renamed", {})
    found: dict[str, list[str]] = {}
    for dest, options in line.get("flags", {}).items():
        found.setdefault(renamed.get(dest, dest), []).extend(options)
    return found


def _with_unseen(
    steps: list[Change], parsed: Any, final: Any, phase: str, kind: str
) -> list[Change]:
    """Add the change that no write explains: a container edited in place, or a declared fallback."""
    last = steps[-1].new if steps else parsed
    if same(last, final):
        return steps
    return [*steps, Change(old=last, new=final, kind=kind, phase=phase, frames=())]
