"""What the child may import.

A capsule's child runs without ``site``: its path is the standard library, this package and the
capsule. torch comes from the lab's environment through ``LabFinder``, which answers for the few
names it was given and for nothing else beside them. What it may do is in ``guard`` and ``confine``.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import os
import ssl
import sys
from typing import Any


class LabFinder:
    """Finds an allow-list of modules (torch and what it needs) in the lab's site-packages."""

    def __init__(self, folders: list[str], modules: list[str], distributions: list[str]) -> None:
        self._folders = folders
        self._modules = frozenset(modules)
        self._distributions = frozenset(_normalise(name) for name in distributions)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if path is None and name.partition(".")[0] in self._modules:
            return importlib.machinery.PathFinder.find_spec(name, self._folders, target)
        return None  # a submodule is found through its package's own __path__

    def find_distributions(self, context: Any = None) -> Any:
        wanted = getattr(context, "name", None)
        names = self._distributions if wanted is None else {_normalise(wanted)}
        search = importlib.metadata.DistributionFinder.Context(name=wanted, path=self._folders)
        for found in importlib.metadata.MetadataPathFinder.find_distributions(search):
            name = _normalise(found.metadata["Name"] or "")
            if name in names and name in self._distributions:
                yield found


def _normalise(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def set_paths(boot: dict[str, Any]) -> None:
    """Compose ``sys.path`` and ``sys.meta_path`` of a capsule's child from the boot record."""
    sys.path.append(boot["site"])
    lab = boot["lab"]
    sys.meta_path.append(
        LabFinder(lab["folders"], lab["modules"], lab["distributions"])  # type: ignore[arg-type]
    )
    os.environ["PATH"] = boot["shims"] + os.pathsep + os.environ.get("PATH", os.defpath)


def skip_certificates() -> None:
    """Spare the hub client the reading of all certificates: 20 ms a launch.

    It does so before its offline mode refuses the request, for a connection that cannot be made.
    """
    ssl.SSLContext.load_verify_locations = lambda *_args, **_kwargs: None  # type: ignore[method-assign]


def shorten_config_logging() -> None:
    """Spare transformers the printing of a configuration into a message that nobody sees.

    ``from_dict`` formats the whole configuration for an ``info`` record, and the hub's validators do
    so for each member of a union that a nested configuration is not: a third of a resolution's
    time. Any other caller still gets the real text.
    """
    from transformers import configuration_utils

    quiet = {("from_dict", configuration_utils.__file__)}
    with contextlib.suppress(ImportError):  # clients before 1.0 do not validate
        from huggingface_hub import dataclasses as hub_dataclasses

        quiet.add(("_validate_simple_type", hub_dataclasses.__file__))

    for name in ("PreTrainedConfig", "PretrainedConfig"):
        cls = getattr(configuration_utils, name, None)
        if cls is None or "__repr__" not in vars(cls):
            continue
        real = cls.__repr__

        def short(self: Any, real: Any = real) -> str:
            caller = sys._getframe(1).f_code
            if (caller.co_name, caller.co_filename) in quiet:
                return type(self).__name__
            return str(real(self))

        cls.__repr__ = short
        return
