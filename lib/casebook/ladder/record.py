"""Run a real server unchanged and keep what its start tells: argv, environment, log, memory, figures.

The server's own output passes through as it comes. At each milestone of its start (before weights,
after weights, after pools, after graphs) the GPU's memory is read with NVML; without a GPU the record
says so. One JSON file results, in the form of the published measurements.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from casebook.errors import LaunchError
from casebook.launch import Launch, Redactor
from casebook.launch.server_log import parse_arguments
from casebook.launch.shield import Shield

MILESTONES = (
    ("before load", re.compile(r"Load weight begin")),
    ("after load", re.compile(r"Load weight end")),
    ("after pools", re.compile(r"Memory pool end|KV Cache is allocated")),
    (
        "after graphs",
        re.compile(r"Capture (?:cuda|decode|target)?.*graph end|max_total_num_tokens="),
    ),
)
READY = re.compile(r"The server is fired up|Uvicorn running on|Application startup complete")
MAX_LINES = 4000
MAX_LINE = 2**16
_GB = r"([-\d.]+)\s*GB"
FIGURES: tuple[tuple[re.Pattern[str], tuple[tuple[str, type], ...]], ...] = (
    (re.compile(rf"Load weight begin.*?avail mem={_GB}"), (("avail_mem_before_load_gb", float),)),
    (
        re.compile(rf"Load weight end.*?avail mem={_GB}(?:.*?mem usage={_GB})?"),
        (("avail_after_load_gb", float), ("weight_load_mem_usage_gb", float)),
    ),
    (
        re.compile(r"Mamba Cache is allocated.*?max_mamba_cache_size: (-?\d+)"),
        (("max_mamba_cache_size", int),),
    ),
    (
        re.compile(rf"conv_state size: {_GB},? ?ssm_state size: {_GB}"),
        (("conv_state_gb", float), ("ssm_state_gb", float)),
    ),
    (re.compile(rf"intermediate_ssm_state_cache size: {_GB}"), (("intermediate_ssm_gb", float),)),
    (
        re.compile(rf"intermediate_conv_window_cache size: {_GB}"),
        (("intermediate_conv_gb", float),),
    ),
    (
        re.compile(rf"KV Cache is allocated.*?#tokens: (\d+)(?:, K size: {_GB}, V size: {_GB})?"),
        (("kv_tokens", int), ("k_size_gb", float), ("v_size_gb", float)),
    ),
    (re.compile(rf"Memory pool end.*?avail mem={_GB}"), (("memory_pool_end_avail_gb", float),)),
    (re.compile(rf"Capture .*?graph end.*?mem usage={_GB}"), (("cuda_graph_mem_usage_gb", float),)),
    (re.compile(r"max_total_num_tokens=(\d+)"), (("max_total_num_tokens", int),)),
    (re.compile(r"max_running_requests=(\d+)"), (("max_running_requests", int),)),
    (re.compile(r"context_len=(\d+)"), (("context_len", int),)),
    (re.compile(r"chunked_prefill_size=(-?\d+)"), (("chunked_prefill_size", int),)),
    (re.compile(rf"available_gpu_mem={_GB}"), (("available_gpu_mem_gb", float),)),
)


@dataclass(frozen=True)
class MemorySample:
    """One GPU's memory at a milestone."""

    milestone: str
    gpu: int
    used_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass
class Observation:
    """What was seen so far."""

    figures: dict[str, float | int] = field(default_factory=dict)
    milestones: dict[str, float] = field(default_factory=dict)
    samples: list[MemorySample] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    dropped: int = 0
    arguments: dict[str, Any] | None = None
    ready: bool = False
    error: str = ""


class Nvml:
    """Reads GPU memory; ``why_not`` says why it cannot, where it cannot."""

    def __init__(self) -> None:
        self.why_not = ""
        self.names: list[str] = []
        try:
            import pynvml  # type: ignore[import-untyped]

            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
            self.names = [str(pynvml.nvmlDeviceGetName(h)) for h in self._handles]
        except Exception as error:  # NVML's own error class needs NVML to be there
            self.why_not = f"NVML is not to be had: {error or type(error).__name__}"
            self._handles = []

    def sample(self, milestone: str) -> list[MemorySample]:
        """The memory of each GPU now."""
        found = []
        for number, handle in enumerate(self._handles):
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            found.append(
                MemorySample(
                    milestone, number, int(memory.used), int(memory.free), int(memory.total)
                )
            )
        return found


def observe(
    line: str, seen: Observation, seconds: float, sample: Callable[[str], list[MemorySample]]
) -> None:
    """Take in one line of the server's start (secrets already taken out)."""
    for name, pattern in MILESTONES:
        if name not in seen.milestones and pattern.search(line):
            seen.milestones[name] = round(seconds, 3)
            seen.samples += sample(name)
    for pattern, names in FIGURES:
        if match := pattern.search(line):
            for (key, kind), text in zip(names, match.groups(), strict=True):
                if text is not None and key not in seen.figures:
                    seen.figures[key] = kind(text)
    if seen.arguments is None and "server_args=" in line:
        try:
            seen.arguments = parse_arguments(line, "the server's output", len(seen.lines) + 1)[1]
        except LaunchError:
            seen.arguments = None
    if re.match(r"(?:\w+\.)*\w*Error: ", line.strip()):
        seen.error = line.strip()[:1000]
    seen.ready = seen.ready or bool(READY.search(line))
    if len(seen.lines) < MAX_LINES:
        seen.lines.append(line)
    else:
        seen.dropped += 1


def measurement(
    launch: Launch,
    environment: Mapping[str, str],
    seen: Observation,
    nvml: Nvml,
    status: int | None,
    started: str,
) -> dict[str, Any]:
    """The record as JSON: the keys of the published measurements, and what only a record has."""
    redact = Redactor.of(launch)
    arguments = seen.arguments or {}
    outcome = (
        "ok" if seen.ready else "error" if status not in (None, 0) else "ended before it was ready"
    )
    keys = [k for _, names in FIGURES for k, _ in names]
    return {
        "schema": "casebook-measurement-1",
        "date": started,
        "sglang_version": arguments.get("version"),
        "gpu": nvml.names[0] if nvml.names else None,
        "gpu_count": len(nvml.names) or None,
        "tp_size": arguments.get("tp_size"),
        "dp_size": arguments.get("dp_size"),
        "model": arguments.get("model_path") or launch.value_of("--model-path", "--model"),
        "argv": redact.words(launch.words()),
        "environment": {n: redact.env(n, v) for n, v in sorted(environment.items())},
        "server_args": seen.arguments,
        "measured": {k: seen.figures.get(k) for k in keys}
        | {"outcome": outcome, "error_text": seen.error or None},
        "milestones_seconds": seen.milestones,
        "memory_samples": [vars(s) for s in seen.samples],
        "nvml": nvml.why_not or "read",
        "exit_status": status,
        "raw_lines": seen.lines,
        "lines_left_out": seen.dropped,
        "row_kind": "log",
    }


def run_recorded(
    command: Sequence[str],
    out: Path,
    *,
    stop_when_ready: bool = False,
    limit_seconds: float | None = None,
    echo: IO[str] | None = None,
) -> dict[str, Any]:
    """Start ``command`` as it is, pass its output on, and write the measurement to ``out``.

    The file is written when the server is ready and again when it ends. A signal to us goes on to the
    server. Raises LaunchError if the command is no SGLang server or cannot be started.
    """
    launch = Launch.from_words(list(command))
    shield = Shield.of(
        [f"{n}={v}" for n, v in os.environ.items()],
        [launch, Launch((), dict(os.environ), "python")],
    )
    echo = echo or sys.stdout
    nvml, seen = Nvml(), Observation()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        process = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started: {error.strerror or error}.") from error

    def save(status: int | None) -> dict[str, Any]:
        found = measurement(launch, dict(os.environ), seen, nvml, status, started)
        _write(out, found)
        return found

    def forward(number: int, _frame: object) -> None:
        _signal(process, number)

    before = (
        {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
        if _in_main_thread()
        else {}
    )
    begun = time.monotonic()
    try:
        for line in _lines(process, limit_seconds, begun):
            clean = shield.text(line)
            echo.write(clean + "\n")
            echo.flush()
            was_ready = seen.ready
            observe(clean, seen, time.monotonic() - begun, nvml.sample)
            if seen.ready and not was_ready:
                save(None)
                if stop_when_ready:
                    break
    finally:
        if process.poll() is None and (stop_when_ready or limit_seconds is not None):
            _signal(process, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
        status = process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    return save(status)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _lines(process: subprocess.Popen[bytes], limit: float | None, begun: float) -> Any:
    """Lines as they come, each cut at MAX_LINE; ends with the output, or at the limit."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = None if limit is None else limit - (time.monotonic() - begun)
            if left is not None and left <= 0:
                break
            if not selector.select(timeout=left):
                break
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            rest += data
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
            if len(rest) > MAX_LINE:
                yield rest[:MAX_LINE].decode("utf-8", "replace")
                rest = b""
    if rest:
        yield rest.decode("utf-8", "replace")


def _write(path: Path, data: Mapping[str, Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
        beside.replace(path)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror or error}.") from error
