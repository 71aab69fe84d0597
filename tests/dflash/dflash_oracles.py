"""The two published implementations, as test oracles: installed apart, imported without their extras."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from casebook.capsule.uvtool import find_uv
from casebook.dflash.apart import installed_apart
from casebook.errors import CapsuleError
from casebook.paths import cache_dir

WANTED = {"specforge": "specforge==0.2.0", "dflash": "dflash==0.1.0"}


def folder(name: str) -> Path:
    """Where an oracle lies; installed without its dependencies on first use, or the test is skipped."""
    find_uv()  # a lab without uv is broken, and no reason to skip
    try:
        return installed_apart(WANTED[name], cache_dir() / "oracles", name)
    except CapsuleError as error:
        pytest.skip(str(error))


def zlab() -> Any:
    """z-lab's ``dflash.model`` module."""
    return _import("dflash", "dflash.model")


def specforge_draft() -> Any:
    """SpecForge's drafter module, without the package initialisers that pull in a GPU stack."""
    _bare("specforge", "specforge.modeling", "specforge.modeling.draft")
    return _import("specforge", "specforge.modeling.draft.dflash")


def specforge_online() -> Any:
    """SpecForge's module with ``OnlineDFlashModel``."""
    specforge_draft()
    _bare("specforge.core", "specforge.algorithms", "specforge.algorithms.common")
    return _import("specforge", "specforge.algorithms.common.dflash_family_model")


def _bare(*names: str) -> None:
    root = folder("specforge")
    for name in names:
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [str(root / name.replace(".", "/"))]
            sys.modules[name] = module


def _import(package: str, name: str) -> Any:
    import importlib

    root = str(folder(package))
    sys.path.insert(0, root)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(root)
