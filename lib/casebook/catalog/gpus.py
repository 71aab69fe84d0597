"""The GPU profiles: what a simulated device tells SGLang about itself.

SGLang decides by what the device reports (compute capability, total memory, number of SMs, CUDA
or HIP version), so a profile holds those answers and nothing else. ``data/gpus.toml`` lists them,
each figure with the source it came from; a figure without a source is refused, so that a
guess can only enter the catalog labelled as one.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from casebook.errors import CasebookError, DataError, UnknownGpuError
from casebook.paths import data_dir

MIB = 1024**2
GIB = 1024**3

_Positive = Annotated[int, Field(gt=0)]
_Text = Annotated[str, Field(min_length=1)]
_Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)+")]

#: How the text of a source may begin; the last two kinds are the ones no print or document backs.
_SOURCE_KINDS = re.compile(
    r"https?://\S|published (output|log), index \d|document: \S|(derived|assumed): \S"
)
_VENDOR_ONLY = {"cuda_version": "nvidia", "hip_version": "amd", "gcn_arch": "amd"}
_NOT_FIGURES = frozenset({"id", "aliases", "vendor", "integrated", "sources"})


class GpuProfile(BaseModel):
    """One kind of GPU as the driver, ``nvidia-smi`` (or ``rocminfo``) and torch report it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: _Text
    aliases: tuple[_Text, ...] = Field(default=(), strict=False)
    vendor: Literal["nvidia", "amd"]
    device_name: _Text
    compute_capability: tuple[int, int] = Field(strict=False)
    gcn_arch: _Text | None = None
    sm_count: _Positive
    smi_total_mib: _Positive
    torch_total_bytes: _Positive
    free_at_start_gib: Annotated[float, Field(gt=0)] | None = None
    shared_memory_per_block_optin_bytes: _Positive
    l2_cache_bytes: _Positive
    max_threads_per_multiprocessor: _Positive
    warp_size: _Positive
    driver_version: _Version
    cuda_version: _Version | None = None
    hip_version: _Version | None = None
    devices_per_node: _Positive
    integrated: bool = False
    #: Variables that the vendor's images of SGLang set, as pairs; a launch's own values win.
    environment: tuple[tuple[str, str], ...] | None = None
    #: (figure, where it came from), as pairs so that a profile stays hashable.
    sources: tuple[tuple[str, str], ...]

    @field_validator("sources", "environment", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        return tuple(value.items()) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, vendor in _VENDOR_ONLY.items():
            given = getattr(self, name) is not None
            if given != (self.vendor == vendor):
                has = "has no" if given else "needs"
                raise ValueError(f"vendor {self.vendor!r} {has} {name}")
        if self.torch_total_bytes > self.smi_total_mib * MIB:
            raise ValueError("torch_total_bytes exceeds smi_total_mib")
        free = self.free_at_start_bytes
        if free is not None and free > self.torch_total_bytes:
            raise ValueError("free_at_start_gib exceeds torch_total_bytes")
        sources = dict(self.sources)
        figures = self.figures()
        for name in figures:
            if name not in sources:
                raise ValueError(f"no source for {name}")
        for name, text in sources.items():
            if name not in figures:
                raise ValueError(f"a source for {name}, which the profile does not give")
            if not _SOURCE_KINDS.match(text):
                raise ValueError(
                    f"the source of {name} must begin with a URL, 'published output, index N', "
                    "'published log, index N', 'document:', 'derived:' or 'assumed:'"
                )
        return self

    @property
    def torch_total_mib(self) -> int:
        """Total memory as torch prints it: whole MiB, rounded down."""
        return self.torch_total_bytes // MIB

    @property
    def free_at_start_bytes(self) -> int | None:
        """``free_at_start_gib`` in bytes (a log gives it to 0.01 GiB), or None if never seen."""
        return None if self.free_at_start_gib is None else round(self.free_at_start_gib * GIB)

    @property
    def gfx(self) -> str | None:
        """The AMD target without its feature flags, e.g. ``gfx942``; None for NVIDIA."""
        return self.gcn_arch.partition(":")[0] if self.gcn_arch else None

    def figures(self) -> tuple[str, ...]:
        """The fields that state a fact about the device and so must have a source."""
        return tuple(
            name
            for name in type(self).model_fields
            if name not in _NOT_FIGURES and getattr(self, name) is not None
        )

    def source(self, figure: str) -> str:
        """Where ``figure`` came from."""
        try:
            return dict(self.sources)[figure]
        except KeyError:
            raise CasebookError(
                f"GPU profile {self.id!r} gives no figure {figure!r}; it gives {', '.join(self.figures())}."
            ) from None

    def unbacked(self) -> tuple[str, ...]:
        """The figures that no print or document states: those derived and those assumed."""
        return tuple(name for name, text in self.sources if text.startswith(("derived", "assumed")))

    def with_software(
        self,
        *,
        driver_version: str | None = None,
        cuda_version: str | None = None,
        hip_version: str | None = None,
    ) -> GpuProfile:
        """The same device under another driver, CUDA or HIP version."""
        asked = {
            "driver_version": driver_version,
            "cuda_version": cuda_version,
            "hip_version": hip_version,
        }
        changed = {name: value for name, value in asked.items() if value is not None}
        notes = dict.fromkeys(changed, "assumed: given by the caller")
        raw = self.model_dump() | changed | {"sources": dict(self.sources) | notes}
        try:
            return GpuProfile.model_validate(raw)
        except ValidationError as exc:
            key, problem = _first(exc)
            where = f", {key}" if key else ""
            raise CasebookError(
                f"GPU profile {self.id!r} cannot take these versions{where}: {problem}; "
                "give versions such as 13.0 that its vendor has."
            ) from None

    def as_device(self, count: int = 8) -> dict[str, Any]:
        """A node of ``count`` such devices as plain JSON data, for the simulated GPU in the child.

        Every field but ``sources``, and ``torch_total_mib``, ``free_at_start_bytes``, ``gfx`` and ``count``.
        """
        if count < 1:
            raise CasebookError(
                f"A node of {count} {self.id} devices cannot be simulated; ask for 1 or more."
            )
        return self.model_dump(mode="json", exclude={"sources"}) | {
            "torch_total_mib": self.torch_total_mib,
            "free_at_start_bytes": self.free_at_start_bytes,
            "gfx": self.gfx,
            "count": count,
        }


def load_gpus(path: Path | None = None) -> dict[str, GpuProfile]:
    """All profiles of ``path`` (default: ``gpus.toml`` in the data folder) by id, in file order."""
    return dict(_load((path or data_dir() / "gpus.toml").absolute()))


def gpu(name: str) -> GpuProfile:
    """The profile of that id, alias or device name; case, spaces, hyphens and the vendor are ignored."""
    profiles = load_gpus()
    wanted = _folded(name)
    for profile in profiles.values():
        if wanted in _names(profile):
            return profile
    raise UnknownGpuError(
        "GPU", name, profiles, f"Use one of {', '.join(profiles)}, or add it to data/gpus.toml."
    )


def gpus_table() -> pd.DataFrame:
    """One row per profile for a notebook; the last column names the figures no document states."""
    rows = [
        {
            "gpu": p.id,
            "vendor": p.vendor,
            "device_name": p.device_name,
            "compute_capability": ".".join(map(str, p.compute_capability)),
            "gcn_arch": p.gfx,
            "sm_count": p.sm_count,
            "smi_total_mib": p.smi_total_mib,
            "torch_total_mib": p.torch_total_mib,
            "free_at_start_gib": p.free_at_start_gib,
            "shared_memory_per_block_optin_kib": p.shared_memory_per_block_optin_bytes // 1024,
            "l2_cache_mib": p.l2_cache_bytes / MIB,
            "max_threads_per_multiprocessor": p.max_threads_per_multiprocessor,
            "warp_size": p.warp_size,
            "driver_version": p.driver_version,
            "cuda_version": p.cuda_version,
            "hip_version": p.hip_version,
            "devices_per_node": p.devices_per_node,
            "derived_or_assumed": ", ".join(p.unbacked()),
        }
        for p in load_gpus().values()
    ]
    return pd.DataFrame(rows)


@functools.lru_cache(maxsize=1024)
def _folded(name: str) -> str:
    """``name`` reduced to its letters and digits in lower case, without a leading vendor."""
    return re.sub(r"[^0-9a-z]+", "", re.sub(r"^\W*(nvidia|amd)(?![0-9a-z])", "", name.casefold()))


def _names(profile: GpuProfile) -> set[str]:
    return {_folded(n) for n in (profile.id, profile.device_name, *profile.aliases)}


def _first(exc: ValidationError) -> tuple[str, str]:
    """Key (empty for a rule about the whole entry) and message of the first fault in ``exc``."""
    fault = exc.errors(include_url=False)[0]
    message = fault["msg"].removeprefix("Value error, ")
    return ".".join(map(str, fault["loc"])), message[:1].lower() + message[1:]


@functools.cache
def _load(path: Path) -> dict[str, GpuProfile]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise DataError(
            f"{path} cannot be read ({exc.strerror}); restore it or set CASEBOOK_DATA to the data folder."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise DataError(f"{path} is not valid TOML ({exc}); correct it there.") from None
    entries = document.get("gpus")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path} has no entry under the key gpus; add a [[gpus]] table.")
    if extra := sorted(set(document) - {"gpus"}):
        raise DataError(f"{path} has the unknown key {extra[0]}; remove it.")
    profiles: dict[str, GpuProfile] = {}
    owner: dict[str, str] = {}
    for number, entry in enumerate(entries, start=1):
        label = entry.get("id", "without id") if isinstance(entry, dict) else "not a table"
        where = f"{path}, gpus entry {number} ({label})"
        try:
            profile = GpuProfile.model_validate(entry)
        except ValidationError as exc:
            key, problem = _first(exc)
            at = f", key {key}" if key else ""
            raise DataError(f"{where}{at}: {problem}; correct it there.") from None
        for name in sorted(_names(profile)):
            if not name:
                raise DataError(
                    f"{where}, keys id, aliases and device_name: a name has no letter or digit "
                    "besides the vendor; give one that has."
                )
            if name in owner:
                raise DataError(
                    f"{where}, keys id, aliases and device_name: {name!r} already names {owner[name]}; "
                    "give each GPU names of its own."
                )
            owner[name] = profile.id
        profiles[profile.id] = profile
    return profiles
