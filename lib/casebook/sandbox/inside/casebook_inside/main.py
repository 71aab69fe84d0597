"""Entry point of the child: set the stage, import SGLang, serve.

The parent passes one socket; its first line is the boot record, our first line back says ``ready`` or
``failed``. Standard output and error belong to whatever SGLang prints and are never the channel.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from casebook_inside import forks


def main(fd: int) -> None:
    """Serve on the socket ``fd`` until it closes."""
    channel = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    boot = json.loads(forks.read_line(channel))
    started = time.monotonic()
    try:
        reads = set_stage(boot)
    except BaseException as error:
        failure = {
            "failed": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
        channel.sendall(json.dumps(failure).encode() + b"\n")
        return

    from casebook_inside import largepages, pages, probe, resolve

    handlers: dict[str, forks.Handler] = {
        "resolve": resolve.run,
        "probe": probe.run,
        "size": _size,
    }
    enter = confinement(boot)
    import sglang

    bare = boot.get("bare", False)
    if not bare:
        resolve.prepare_forks()
        gc.collect()
        gc.freeze()  # shared pages stay shared: the collector no longer touches them in a fork
        largepages.enlarge()
    # A spare fork waits for each launch, with the pages already its own that launches write to.
    written = [] if bare else pages_of_a_launch(boot, enter)
    rehearse = None if bare else functools.partial(pages.copy, written)
    server = forks.ForkServer(channel, handlers, rehearse=rehearse, enter=enter)
    server.reply(
        {
            "ready": True,
            "version": sglang.__version__,
            "package": os.path.dirname(os.path.abspath(sglang.__file__)),
            "python": sys.version.split()[0],
            "seconds": time.monotonic() - started,
            "environment_read_at_import": reads,
            "confined": boot.get("confined", {"network": False, "files": False}),
        }
    )
    server.serve()


def _size(request: dict[str, Any]) -> dict[str, Any]:
    # What it imports no other operation needs; a child that is started for it has done so already.
    from casebook_inside.sizing import run

    return run.run(request)


def set_stage(boot: dict[str, Any]) -> dict[str, str | None]:
    """Sandbox, paths, simulated GPU, stubs, SGLang, hooks; returns what the import read from the environment."""
    from casebook_inside import environ, isolation, resolve

    if boot["mode"] == "capsule":
        from casebook_inside import gpu, lazy_compile, stubs

        isolation.set_paths(boot)
        close_sandbox(boot)
        isolation.skip_certificates()
        import torch  # before the stubs, which torch must not meet

        lazy_compile.install(torch)
        stubs.install(boot["stubs"], stubs.triton_target(boot["device"]))
        gpu.install(boot["device"])
    reads: dict[str, str | None] = {}

    def listener(operation: str, name: str, old: Any, _new: Any) -> None:
        if operation == "read":
            reads.setdefault(name, old)

    environ.listen(listener)
    try:
        resolve.prepare()
        if boot["mode"] == "capsule":
            isolation.shorten_config_logging()
        launches, enter = boot.get("warmup", ()), confinement(boot)
        requests = [{"argv": argv, "list_imports": True} for argv in launches]
        warm_up(resolve.run, requests, enter)
        if boot.get("sizes"):
            sizing = importlib.import_module("casebook_inside.sizing.run")
            sizing.prepare()
            warm_up(sizing.run, [sizing.plain_request(argv) for argv in launches], enter)
    finally:
        environ.listen(None)
    return reads


def close_sandbox(boot: dict[str, Any]) -> None:
    """No network and no writes but to scratch, and to the capsule's folder what Python compiles.

    Must come before anything starts a thread. In the boot record ``confined`` tells what of it the
    kernel enforces.
    """
    from casebook_inside import confine, guard

    inside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    boot["confined"] = {
        "network": confine.leave_network(),
        "files": confine.allow_writes([boot["home"], boot["site"]]),
    }
    guard.install([boot["site"], inside, *boot["lab"]["folders"]], [boot["home"]])


def confinement(boot: dict[str, Any]) -> Callable[[], None] | None:
    """What each launch's fork must do first: give up more than the server itself could."""
    if boot["mode"] != "capsule":
        return None
    from casebook_inside import confine, guard

    def enter() -> None:
        sys.dont_write_bytecode = True
        confine.allow_writes([boot["home"]])
        guard.enter_launch()

    return enter


def pages_of_a_launch(
    boot: dict[str, Any], enter: Callable[[], None] | None
) -> list[tuple[int, int]]:
    """The memory that resolving a launch writes: that of the first warm-up launch that comes to its end."""
    from casebook_inside import largepages, pages, resolve

    if not pages.available():
        return []
    mapped = list(largepages.mappings(files=True))

    def watched(request: dict[str, Any]) -> dict[str, Any]:
        outcome = resolve.run(request)["outcome"]
        return {"outcome": outcome, "written": pages.written(mapped)}

    for argv in boot.get("warmup", ()):
        answer = forks.run_once(watched, {"argv": argv}, enter=enter)
        if answer["outcome"]["kind"] == "resolved":
            return [(address, size) for address, size in answer["written"]]
    return []


def warm_up(
    handler: forks.Handler, requests: list[dict[str, Any]], enter: Callable[[], None] | None
) -> None:
    """Import here what a request makes SGLang import in a fork, so that later forks find it there.

    SGLang imports much of itself inside functions; a fork that had to do so would take a second. A
    launch that is refused on the way imports little, so the next is tried until one comes to its end.
    """
    for request in requests:
        answer = forks.run_once(handler, request, enter=enter)
        for name in answer.get("imported", ()):
            # What cannot be imported on its own is left to the launch that needs it.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)
        if answer["outcome"]["kind"] == "resolved":
            return
