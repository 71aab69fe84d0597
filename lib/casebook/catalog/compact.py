"""A short, exact, readable form for the repeating lists inside model configurations.

A checkpoint's ``config.json`` spells out one word per layer and one name per quantized module:
hundreds of lines that say "three linear layers, then a full one, sixteen times". ``data/models/``
keeps such lists as one line, so that a person can read and review them, and this module turns them
back into the very same lists. The forms are those of :mod:`compact_lists` (runs, ranges) and
:mod:`compact_names` (names, name maps); :class:`CompactPaths` says which value is in which. TOML has
no null, so null keys are listed there too.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from casebook.catalog.compact_lists import decode_ranges, decode_runs, encode_ranges, encode_runs
from casebook.catalog.compact_names import (
    decode_name_map,
    decode_names,
    encode_name_map,
    encode_names,
)

_SHORT = 8  # lists with fewer items than this are left as they are


class CompactPaths(BaseModel):
    """Where a document uses a compact form: dotted paths from the document's root."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nulls: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    name_maps: tuple[str, ...] = ()


def pack(document: dict[str, Any]) -> tuple[dict[str, Any], CompactPaths]:
    """``document`` (JSON values) without nulls and with its long repeating lists made compact."""
    paths: dict[str, list[str]] = {form: [] for form in CompactPaths.model_fields}

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            if _is_name_map(value):
                paths["name_maps"].append(path)
                return encode_name_map(value)
            kept = {}
            for key, inner in value.items():
                if not key or "." in key:
                    raise ValueError(f"cannot address key {key!r} of {path!r} by a dotted path")
                inner_path = f"{path}.{key}" if path else key
                if inner is None:
                    paths["nulls"].append(inner_path)
                else:
                    kept[key] = visit(inner, inner_path)
            return kept
        if isinstance(value, list):
            if _holds_null(value):
                raise ValueError(f"the list {path!r} holds a null, which TOML cannot express")
            form, short = _shortest(value)
            if form:
                paths[form].append(path)
            return short
        return value

    packed = visit(document, "")
    return packed, CompactPaths(**{form: tuple(found) for form, found in paths.items()})


def unpack(document: dict[str, Any], paths: CompactPaths) -> dict[str, Any]:
    """The document that :func:`pack` packed, as a new object."""
    whole = copy.deepcopy(document)
    decoders = {
        "runs": decode_runs,
        "ranges": decode_ranges,
        "names": decode_names,
        "name_maps": decode_name_map,
    }
    for form, decode in decoders.items():
        for path in getattr(paths, form):
            parent, key = _locate(whole, path)
            if key not in parent:
                raise ValueError(f"{form} names {path!r}, which is not there")
            try:
                parent[key] = decode(parent[key])  # type: ignore[operator]
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{path!r} is not in the form that {form} needs") from error
    for path in paths.nulls:
        parent, key = _locate(whole, path)
        if key in parent:
            raise ValueError(f"nulls names {path!r}, which has a value")
        parent[key] = None
    return whole


def _locate(document: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *steps, key = path.split(".")
    here: Any = document
    for step in steps:
        here = here.get(step) if isinstance(here, dict) else None
    if not isinstance(here, dict):
        raise ValueError(f"there is no table that holds {path!r}")
    return here, key


def _is_name_map(value: dict[str, Any]) -> bool:
    return (
        len(value) >= _SHORT
        and all("." in key or key == "lm_head" for key in value)
        and not _holds_null(list(value.values()))
    )


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    if isinstance(value, list):
        return any(map(_holds_null, value))
    return value is None


def _shortest(items: list[Any]) -> tuple[str | None, Any]:
    if len(items) < _SHORT:
        return None, items
    candidates: list[tuple[str | None, Any]] = []
    if all(type(i) is int for i in items) or all(isinstance(i, str) for i in items):
        candidates.append(("runs", encode_runs(items)))
    if all(type(i) is int and i >= 0 for i in items):
        candidates.append(("ranges", encode_ranges(items)))
    if all(isinstance(i, str) for i in items):
        candidates.append(("names", encode_names(items)))
    if not candidates:
        return None, items
    form, short = min(candidates, key=lambda c: len(json.dumps(c[1])))
    worth_it = len(json.dumps(short)) < 0.7 * len(json.dumps(items))
    return (form, short) if worth_it else (None, items)
