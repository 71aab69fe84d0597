"""What a child is told when it starts: paths, stand-ins, the device, its environment.

Pure functions of a capsule and a GPU profile, plus ``write_shims`` which makes the command-line tools
that SGLang asks about the GPU.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from casebook.errors import CapsuleError
from casebook.paths import data_dir

if TYPE_CHECKING:
    from casebook.capsule import Capsule

INSIDE = Path(__file__).parent / "inside"

# Set by the sandbox for its own ends: never taken from a launch, never reported as read by it.
RESERVED = frozenset(
    {
        *("PATH", "HOME", "TMPDIR", "LANG", "SHELL", "USER"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME"),
        *("HF_MODULES_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        # These make libraries load or write files of the launch's choice.
        *("GCONV_PATH", "GLIBC_TUNABLES", "OPENSSL_CONF", "OPENSSL_MODULES", "SSLKEYLOGFILE"),
    }
)
RESERVED_PREFIXES = ("LD_", "DYLD_", "PYTHON", "BASH_", "GIT_")


def is_reserved(name: str) -> bool:
    """Whether the sandbox keeps environment variable ``name`` for itself."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def environment(hub: Path, home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment: nothing of the lab's own but the search path."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_CACHE": str(hub),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        # Sets of choices print in the same order every time.
        "PYTHONHASHSEED": "0",
        **{name: value for name, value in extra.items() if not is_reserved(name)},
    }


def stubs(capsule: Capsule, vendor: str) -> list[dict[str, Any]]:
    """The stand-ins of ``data/capsules/stubs.toml`` for a vendor's installation of this release.

    A stand-in's version is the one that the release's own requirements ask for, so that SGLang's
    version checks see what a full installation would show them.
    """
    asked = required_versions(capsule)
    table = tomllib.loads((data_dir() / "capsules" / "stubs.toml").read_text("utf-8"))
    found = []
    for entry in table["stub"]:
        if vendor not in entry.get("vendors", ["nvidia", "amd"]):
            continue
        name = canonicalize_name(entry["distribution"])
        if name not in asked and not entry.get("always", False):
            continue  # that release's full installation has no such package
        for module in entry["modules"]:
            found.append(
                {
                    "module": module,
                    "distribution": entry["distribution"],
                    "version": asked.get(name) or entry.get("version", "0"),
                    "everyone": entry.get("everyone", False),
                }
            )
    return found


def required_versions(capsule: Capsule) -> dict[str, str | None]:
    """Distribution -> version that the release's metadata pins for it (None: no exact pin)."""
    found = sorted(capsule.site.glob("sglang-*.dist-info/METADATA"))
    if not found:
        raise CapsuleError(
            f"The capsule of {capsule.release} has no metadata for sglang; "
            f"remove {capsule.site.name} from the cache and build it again."
        )
    versions: dict[str, str | None] = {}
    metadata = importlib.metadata.PathDistribution(found[0].parent)
    for text in metadata.requires or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        exact = [s.version for s in requirement.specifier if s.operator == "=="]
        versions[canonicalize_name(requirement.name)] = exact[0] if exact else None
    return versions


@cache
def lab() -> dict[str, list[str]]:
    """torch and what torch itself needs, as it stands in the lab's environment.

    Returns folders to look in, top-level modules and distributions; everything else that the lab
    has installed stays out of the child's reach.
    """
    modules: set[str] = set()
    distributions: set[str] = set()
    folders: set[str] = set()
    todo = ["torch"]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in distributions:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "torch":
                raise CapsuleError(
                    "torch is not installed in this environment; install requirements.txt first."
                ) from None
            continue  # an optional package of torch's, for another platform
        distributions.add(name)
        folders.add(str(distribution.locate_file("")))
        # Some installers keep no list of files; then the name must do.
        modules.update(set(_top_level(distribution)) or {name.replace("-", "_")})
        todo += [
            requirement.name
            for requirement in map(Requirement, distribution.requires or ())
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    return {
        "folders": sorted(folders),
        "modules": sorted(modules),
        "distributions": sorted(distributions),
    }


def _top_level(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    for path in distribution.files or ():
        first = path.parts[0]
        if first.endswith((".dist-info", ".data", ".pth")) or first in ("..", "__pycache__"):
            continue
        name = first.removesuffix(".py") if len(path.parts) == 1 else first
        name = name.partition(".")[0] if first.endswith(".so") else name
        if name.isidentifier():
            yield name


def boot_record(
    capsule: Capsule, device: dict[str, Any], shims: Path, home: Path
) -> dict[str, Any]:
    """The first line that the parent sends to a child. ``home`` is all that it may write to."""
    if capsule.live:
        return {"mode": "live"}
    return {
        "mode": "capsule",
        "site": str(capsule.site),
        "lab": lab(),
        "shims": str(shims),
        "home": str(home),
        "device": device,
        "stubs": stubs(capsule, device["vendor"]),
    }


def command(capsule: Capsule, fd: int) -> list[str]:
    """The child's command line. A capsule's child runs without ``site`` and without user paths."""
    # Not -I: it would ignore PYTHONHASHSEED, and sets would print in another order each time.
    flags = [] if capsule.live else ["-P", "-s", "-S"]
    code = f"import sys; sys.path.insert(0, {str(INSIDE)!r}); "
    code += f"from casebook_inside.main import main; main({fd})"
    return [str(capsule.python), *flags, "-X", "utf8", "-c", code]


def write_shims(folder: Path, device: dict[str, Any]) -> None:
    """Write ``nvidia-smi``, or ``rocminfo`` and ``rocm-smi``, answering from the profile."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = _amd_tools(device) if device["vendor"] == "amd" else _nvidia_tools(device)
    for name, script in tools.items():
        path = folder / name
        path.write_text(script, "utf-8")
        path.chmod(0o755)


def _nvidia_tools(device: dict[str, Any]) -> dict[str, str]:
    answers = {
        "memory.total": str(device["smi_total_mib"]),
        "memory.free": str(device["smi_total_mib"]),
        "memory.used": "0",
        "name": device["device_name"],
        "gpu_name": device["device_name"],
        "driver_version": device["driver_version"],
        "compute_cap": ".".join(map(str, device["compute_capability"])),
        "count": str(device["count"]),
    }
    cases = "\n".join(
        f"      {field}) value={shlex.quote(text)} ;;" for field, text in answers.items()
    )
    # Only what SGLang asks: --query-gpu=FIELDS --format=csv,noheader[,nounits].
    script = f"""#!/bin/sh
fields=""
for word in "$@"; do
  case "$word" in --query-gpu=*) fields="${{word#--query-gpu=}}" ;; esac
done
[ -n "$fields" ] || {{ echo "casebook: this nvidia-smi answers --query-gpu only" >&2; exit 1; }}
line=""
old_ifs=$IFS; IFS=,
for field in $fields; do
    case "${{field# }}" in
{cases}
      *) value="[N/A]" ;;
    esac
    line="$line${{line:+, }}$value"
done
IFS=$old_ifs
index=0
while [ "$index" -lt {device["count"]} ]; do echo "$line"; index=$((index + 1)); done
"""
    return {"nvidia-smi": script}


def _amd_tools(device: dict[str, Any]) -> dict[str, str]:
    kib = device["smi_total_mib"] * 1024
    agents = "\n".join(
        f"""*******
Agent {index + 2}
*******
  Name:                    {device["gfx"]}
  Marketing Name:          {device["device_name"]}
  Device Type:             GPU
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    {kib}(0x{kib:x}) KB"""
        for index in range(device["count"])
    )
    rocminfo = f"#!/bin/sh\ncat <<'TEXT'\n{agents}\nTEXT\n"
    total = device["smi_total_mib"] * 1024 * 1024
    lines = "\n".join(
        f"GPU[{index}]\t\t: VRAM Total Memory (B): {total}" for index in range(device["count"])
    )
    return {"rocminfo": rocminfo, "rocm-smi": f"#!/bin/sh\ncat <<'TEXT'\n{lines}\nTEXT\n"}
