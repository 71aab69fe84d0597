"""Declarations of provider functions: at which line did each return what a helper then appends?"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from casebook_inside import recorder


def hook() -> None:
    """Learn at which line a provider or pass returned the declaration that a helper appends.

    ``run_post_process_pass(args, fn)`` and ``_invoke_provider(fn, ...)`` both call ``fn`` and take
    its dictionary. Every reference to them that SGLang's modules hold is wrapped. So is
    ``declare_resolution(args, ...)``: like the first it may make the list of declarations, and goes
    on with its own reference to it, which is not the one that ``hook_arguments`` put in its place.
    """
    overrides = sys.modules.get("sglang.srt.arg_groups.overrides")
    if overrides is None:
        return
    wrapped: dict[int, Callable[..., Any]] = {}
    for name, owner, provider in (
        ("run_post_process_pass", 0, 1),
        ("_invoke_provider", None, 0),
        ("declare_resolution", 0, None),
    ):
        original = getattr(overrides, name, None)
        if original is not None:
            wrapped[id(original)] = _with_provider(original, owner, provider)
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] != "sglang" or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in wrapped and isinstance(value, types.FunctionType):
                setattr(module, attribute, wrapped[id(value)])


def _with_provider(original: Any, owner: int | None, provider: int | None) -> Callable[..., Any]:
    """``original`` with the list of argument ``owner`` made beforehand, and ``provider`` located."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if recorder.active() is None:
            return original(*args, **kwargs)
        changed = list(args)
        if owner is not None and len(args) > owner:
            _make_declaration_list(args[owner])
        if provider is not None and len(args) > provider:
            changed[provider] = _locating(args[provider])
        return original(*changed, **kwargs)

    return call


def _make_declaration_list(owner: Any) -> None:
    hooked = getattr(type(owner).__setattr__, "_casebook_hook", False)
    if hooked and getattr(owner, "_resolved_overrides", None) is None:
        owner._resolved_overrides = []


def _locating(provider: Any) -> Any:
    code = getattr(provider, "__code__", None)
    if code is None:
        return provider

    @functools.wraps(provider)
    def call(*args: Any, **kwargs: Any) -> Any:
        record = recorder.active()
        if record is None or record.only is not None:
            return provider(*args, **kwargs)
        source = getattr(provider, "__qualname__", "?")

        def profile(frame: types.FrameType, event: str, _argument: Any) -> None:
            if event == "return" and frame.f_code is code:
                record.decided(source, record.stack(frame))

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            return provider(*args, **kwargs)
        finally:
            sys.setprofile(before)

    return call
