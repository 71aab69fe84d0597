"""The dry run: a release's own sizing and pool code, in the capsule, on memory that is only counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from casebook import capsule as capsules
from casebook.catalog.gpus import GpuProfile
from casebook.catalog.gpus import gpu as find_gpu
from casebook.catalog.models import ModelFacts
from casebook.errors import MemoryPlanError
from casebook.launch import Launch
from casebook.memory.facts import RankFacts, state_path
from casebook.resolution import pool
from casebook.resolution.trace import set_stage
from casebook.sandbox import Limits
from casebook.sandbox.boot import is_reserved

GIB = 1 << 30
UNLIMITED_BYTES = 1 << 44
"""A device that nothing fills: what a dry run is given when only its facts are wanted."""


_PARTS = {
    "conv_state": state_path("conv"),
    "ssm_state": state_path("temporal"),
    "intermediate_ssm": state_path("intermediate_ssm"),
    "intermediate_conv": state_path("windows"),
}


_KNOWN: dict[str, DryRun] = {}
_KEEP = 256
"""Dry runs kept in memory: the same code, launch and device give the same answer."""


def _remember(key: str, run: DryRun) -> None:
    while len(_KNOWN) >= _KEEP:
        _KNOWN.pop(next(iter(_KNOWN)))
    _KNOWN[key] = run


@dataclass(frozen=True)
class Device:
    """Memory of one device, as one rank meets it, in bytes."""

    total_bytes: int
    free_before_bytes: int
    """Free before the weights are loaded: total less contexts, communicators and neighbours."""
    weights_bytes: int | None = None
    """What loading takes on this rank; None: construct the release's own model and count."""
    draft_weights_bytes: int | None = None
    bounded: bool = True
    """Whether a pool that does not fit is refused."""

    @classmethod
    def endless(cls) -> Device:
        """Large, and it takes every pool: for a dry run of which only the facts are wanted."""
        return cls(UNLIMITED_BYTES, UNLIMITED_BYTES, 0, 0, bounded=False)


@dataclass(frozen=True)
class DryRun:
    """What a release made of a launch and a device."""

    release: str
    launch: Launch
    device: Device
    raw: Mapping[str, Any]

    @property
    def reached_pools(self) -> bool:
        """Whether the target's pools were sized and made."""
        return "facts" in self.raw

    @property
    def outcome(self) -> str:
        """``resolved``, ``raised``, ``exit``, or how the child ended."""
        return str(self.raw["outcome"]["kind"])

    @property
    def message(self) -> str:
        """SGLang's own words where it refused; empty otherwise."""
        return str(self.raw["outcome"].get("message", ""))

    @property
    def log(self) -> tuple[str, ...]:
        """What SGLang logged on the way."""
        return tuple(text for _, text in self.raw.get("log", ()))

    def figure(self, name: str, of: str = "target") -> int:
        """``max_total_num_tokens``, ``max_running_requests``, ``free_bytes``... of target or draft."""
        try:
            return int(self.raw[of][name])
        except (KeyError, TypeError):
            raise MemoryPlanError(
                f"The dry run of SGLang {self.release} has no {name} of the {of}: {self.told()}"
            ) from None

    def told(self) -> str:
        """One sentence on how far it came."""
        if self.outcome == "resolved":
            return "it reached the end of its pools"
        return f"it ended while it read {self.raw.get('stage', 'the launch')}: {self.message}"

    def pool_bytes(self, of: str = "target") -> dict[str, int]:
        """Bytes per buffer of the pools, by the path of the attribute that holds it."""
        pools = self.raw.get(of, {}).get("pools", {})
        return {path: int(entry["bytes"]) for path, entry in pools.items()}

    def parts(self, of: str = "target") -> dict[str, int]:
        """Bytes of the pools of target or draft by the ledger's names, in the order of their making."""
        pools = self.pool_bytes(of)
        found = {name: pools[path] for name, path in _PARTS.items() if path in pools}
        if state_path("intermediate_conv_window") in pools:
            found.setdefault("intermediate_conv", pools[state_path("intermediate_conv_window")])
        rows = int(self.raw.get(of, {}).get("max_total_num_tokens") or 0)
        keys_and_values = (
            size
            for path, size in pools.items()
            if path.startswith("token_to_kv_pool.") and size >= rows
        )
        found["kv"] = sum(keys_and_values)
        return found

    @cached_property
    def facts(self) -> RankFacts:
        """What the closed form takes. Raises MemoryPlanError where it has no rule."""
        if not self.reached_pools:
            raise MemoryPlanError(
                f"SGLang {self.release} did not come to size any memory: {self.told()}"
            )
        return RankFacts.of(self.raw, self.release)


class Sizer:
    """Dry runs of one release on one kind of GPU, on a warm child.

    ``gpus`` is the number of devices of the node (default: as the profile says).
    """

    def __init__(
        self,
        release: str,
        gpu: str | GpuProfile = "B200",
        gpus: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.release = release
        self.profile = gpu if isinstance(gpu, GpuProfile) else find_gpu(gpu)
        self._capsule = capsules.ensure(release)
        self._device = self.profile.as_device(gpus or self.profile.devices_per_node)
        self._limits = limits or Limits(seconds=120)

    @property
    def total_bytes(self) -> int:
        """The device's memory as torch tells it."""
        return int(self._device["torch_total_bytes"])

    def run(
        self,
        launch: Launch | str | Sequence[str],
        device: Device | None = None,
        *,
        model: str | Path | ModelFacts | None = None,
        pp_rank: int = 0,
    ) -> DryRun:
        """Size one launch; without ``device`` on one so large that everything fits."""
        (found,) = self.run_all([(Launch.of(launch), device or Device.endless())], model, pp_rank)
        return found

    def run_all(
        self,
        points: Iterable[tuple[Launch, Device]],
        model: str | Path | ModelFacts | None = None,
        pp_rank: int = 0,
        jobs: int = 1,
    ) -> list[DryRun]:
        """Size many, ``jobs`` at a time, in their order."""
        held = list(points)
        keys = [self._key(launch, device, model, pp_rank) for launch, device in held]
        missing = [i for i, key in enumerate(keys) if key not in _KNOWN]
        found = {i: _KNOWN[key] for i, key in enumerate(keys) if key in _KNOWN}
        for position, one in self.each([held[i] for i in missing], model, pp_rank, jobs):
            found[missing[position]] = one
            _remember(keys[missing[position]], one)
        return [found[i] for i in range(len(held))]

    def _key(self, launch: Launch, device: Device, model: Any, pp_rank: int) -> str:
        env = sorted(launch.env.items())
        parts = [self.release, self._device, launch.argv, env, str(device), repr(model), pp_rank]
        return json.dumps(parts, sort_keys=True)

    def each(
        self,
        points: Sequence[tuple[Launch, Device]],
        model: str | Path | ModelFacts | None = None,
        pp_rank: int = 0,
        jobs: int = 1,
    ) -> Iterator[tuple[int, DryRun]]:
        """``(position, dry run)`` as they finish. All points must agree in their environment."""
        if not points:
            return
        stages = [set_stage(launch, model) for launch, _ in points]
        first = points[0][0]
        env = {name: value for name, value in first.env.items() if not is_reserved(name)}
        worker = pool.worker(
            self._capsule, self._device, env, warm_with=stages[0].launch.argv, sizes=True
        )
        requests = [
            {
                "argv": list(stage.launch.argv),
                "env": env,
                "pp_rank": pp_rank,
                "device": {
                    "total_bytes": device.total_bytes,
                    "free_bytes": device.free_before_bytes,
                    "weights_bytes": device.weights_bytes,
                    "draft_weights_bytes": device.draft_weights_bytes,
                    "bounded": device.bounded,
                },
            }
            for stage, (_, device) in zip(stages, points, strict=True)
        ]
        for position, raw in worker.map("size", requests, self._limits, jobs):
            launch, device = points[position]
            yield position, DryRun(self.release, launch, device, stages[position].restore(raw))


def dry_run(
    launch: Launch | str | Sequence[str],
    *,
    release: str = "0.5.11",
    gpu: str | GpuProfile = "B200",
    device: Device | None = None,
    model: str | Path | ModelFacts | None = None,
    gpus: int | None = None,
    pp_rank: int = 0,
) -> DryRun:
    """Let ``release`` size the pools of ``launch`` on ``device``.

    Raises UnknownReleaseError, UnknownGpuError, UnknownModelError, LaunchError, CapsuleError or
    WorkerError. What SGLang says against the launch is in ``DryRun.outcome`` and ``message``.
    """
    return Sizer(release, gpu, gpus).run(launch, device, model=model, pp_rank=pp_rank)
