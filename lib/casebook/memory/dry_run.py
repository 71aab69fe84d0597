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
from casebook.memory.facts import RankFacts, kv_buffers, state_path
from casebook.resolution import pool
from casebook.resolution.trace import set_stage
from casebook.sandbox import Limits
from casebook.sandbox.boot import is_reserved

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
    if run.outcome not in ("resolved", "raised", "exit"):
        return  # it ran out of time or was stopped: no answer of SGLang's
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
        found["kv"] = sum(int(entry["bytes"]) for entry in kv_buffers(self.raw[of]))
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
        """Size many, ``jobs`` at a time, in their order. All must agree in their environment."""
        held = list(points)
        # By what the child is given: a checkpoint of the user's own goes by its content.
        stages = [set_stage(launch, model) for launch, _ in held]
        keys = [
            self._key(stage.launch, device, pp_rank)
            for stage, (_, device) in zip(stages, held, strict=True)
        ]
        found = {i: _KNOWN[key] for i, key in enumerate(keys) if key in _KNOWN}
        missing = [i for i in range(len(held)) if i not in found]
        requests = [self._request(stages[i].launch, held[i][1], pp_rank) for i in missing]
        for position, raw in self._asked(requests, jobs):
            index = missing[position]
            launch, device = held[index]
            run = DryRun(self.release, launch, device, stages[index].restore(raw))
            found[index] = run
            _remember(keys[index], run)
        return [found[i] for i in range(len(held))]

    def _key(self, launch: Launch, device: Device, pp_rank: int) -> str:
        env = sorted(launch.env.items())
        parts = [self.release, self._device, launch.argv, env, str(device), pp_rank]
        return json.dumps(parts, sort_keys=True)

    def _request(self, launch: Launch, device: Device, pp_rank: int) -> dict[str, Any]:
        return {
            "argv": list(launch.argv),
            "env": {name: value for name, value in launch.env.items() if not is_reserved(name)},
            "pp_rank": pp_rank,
            "device": {
                "total_bytes": device.total_bytes,
                "free_bytes": device.free_before_bytes,
                "weights_bytes": device.weights_bytes,
                "draft_weights_bytes": device.draft_weights_bytes,
                "bounded": device.bounded,
            },
        }

    def _asked(
        self, requests: Sequence[dict[str, Any]], jobs: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """``(position, answer)`` as they come. A child holds one environment, that of the first."""
        if not requests:
            return
        first = requests[0]
        worker = pool.worker(
            self._capsule, self._device, first["env"], warm_with=first["argv"], sizes=True
        )
        yield from worker.map("size", requests, self._limits, jobs)


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
