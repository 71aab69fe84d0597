"""The forms of SGLang's start-up lines, releases 0.5.8 to 0.5.23, as patterns.

Each pattern wants a value whole: a size with its unit, a count with the comma after it. So a line that
another rank's message tore, or that a cut log ends in, gives nothing rather than a shorter number. What
varies between releases is optional in the pattern: ``elapsed=`` (since 0.5.9), ``dtype:`` of the KV cache
(0.5.13), the names of graphs (0.5.14), the label of a KV cache and pools that only reserve addresses
(0.5.18). ``tests/measure/test_every_release.py`` renders the lines of each installed release's source
and reads them back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from casebook.catalog.gpus import GIB
from casebook.measure.lines import Message
from casebook.measure.model import Reading

_SIZE = r"(-?\d{1,9}\.\d{1,4}) ?GB"
_COUNT = r"(-?\d{1,15})"


@dataclass(frozen=True)
class Event:
    """A message that was understood: its kind, its figures and its words."""

    kind: str
    message: Message
    readings: Mapping[str, Reading] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> int:
        """The message's line."""
        return self.message.line


def read_event(message: Message) -> Event | None:
    """What ``message`` says, or None if it is none of SGLang's start-up lines."""
    for begin, reader in _READERS:
        if (at := message.text.find(begin)) >= 0:
            event = reader(message, message.text[at:])
            if event is not None:
                return event
    return None


def size(text: str, line: int) -> Reading | None:
    """A printed number of "GB" as a reading."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    decimals = len(text.partition(".")[2])
    return Reading(round(value * GIB), line, max(1, round(GIB / 10**decimals)))


def _fields(message: Message, text: str, patterns: Mapping[str, re.Pattern[str]]) -> dict:
    found: dict[str, Reading] = {}
    for name, pattern in patterns.items():
        if match := pattern.search(text):
            reading = (
                size(match[1], message.line)
                if "." in match[1]
                else Reading(int(match[1]), message.line)
            )
            if reading is not None:
                found[name] = reading
    return found


def _sizes(**patterns: str) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(text + _SIZE) for name, text in patterns.items()}


_MEMORY = _sizes(free=r"avail mem=", usage=r"mem usage=")
_STATE = {
    "slots": re.compile(rf"max_mamba_cache_size: {_COUNT},"),
    **_sizes(
        conv=r"(?<!_)conv_state size: ",
        ssm=r"(?<!intermediate_)ssm_state size: ",
        intermediate_ssm=r"intermediate_ssm_state_cache size: ",
        intermediate_conv=r"intermediate_conv_window_cache size: ",
    ),
}
_KV = {
    "tokens": re.compile(rf"#tokens: {_COUNT},"),
    **_sizes(
        k=r"\bK (?:size: )?", v=r"\bV (?:size: )?", total=r"\bKV (?:size: )?", free=r"avail mem="
    ),
}
_REPLAY = re.compile(r"\b(?:d|k|g|rawv|rawk|beta)=(\d{1,6}\.\d{3})GB")
_CLASS = re.compile(r"type=([A-Za-z_]\w{0,120}),")
_DTYPE = re.compile(r"dtype: (?:torch\.)?(\w{1,40}),")
_NO_POOL = re.compile(r"KV Cache skipped \(no-op pool\)\. Logical #tokens: (\d{1,15}),")
_LABEL = re.compile(r"(?:^|[\s:])(\w{1,20}) KV Cache $")
_GRAPH = re.compile(
    r"Capture ((?:[\w-]+ ){0,5}?)(?:cuda|CUDA|cpu|CPU|npu|NPU|xpu|XPU|[\w-]+) graph (begin|end)\b"
)
_SINGLE_GRAPH = re.compile(r"Capture (single-CG draft extend) (begin|end)\.")
_STEP = re.compile(r"\bstep[= ](\d{1,4})\b")
_SWA_POOL = re.compile(r"swa size: (\d{1,15}), full size: (\d{1,15})(?!\d)")
_SWA_TOKENS = re.compile(r"swa_layer_tokens=(\d{1,15})(?!\d)")
_CLOSING = {
    name: re.compile(rf"\b{name}={_COUNT},")
    for name in (
        "max_total_num_tokens",
        "chunked_prefill_size",
        "max_prefill_tokens",
        "max_running_requests",
        "context_len",
    )
}
_AVAILABLE = re.compile(rf"available_[cg]pu_mem={_SIZE}")
_CAP_STATE = re.compile(
    r"max_running_requests is capped to (\d{1,9}) by the mamba state cache "
    r"\(max_mamba_cache_size=(\d{1,12}), (\d{1,6}) state slots per request\)"
)
_CAP_KV = re.compile(
    r"max_running_requests was reduced from the requested (\d{1,9}) to (\d{1,9}) \("
)
_CAP_CAPTURE = re.compile(r"max_running_requests (\d{1,9}) -> (\d{1,9})(?!\d)")
_CAP_TOKENS = re.compile(
    r"max_total_tokens=(\d{1,15}) is larger than the profiled value (\d{1,15})\."
)


def _load(message: Message, text: str) -> Event | None:
    found = _fields(message, text, _MEMORY)
    if text.startswith("Load weight begin") and "free" in found:
        return Event("load begin", message, found)
    if text.startswith("Load weight end") and "usage" in found:
        words = {"class": match[1]} if (match := _CLASS.search(text)) else {}
        return Event("load end", message, found, words)
    return None


def _pools_end(message: Message, text: str) -> Event | None:
    found = _fields(message, text, _MEMORY)
    return Event("pools end", message, found) if "free" in found else None


def _state(message: Message, text: str) -> Event | None:  # noqa: ARG001
    found = _fields(message, message.text, _STATE)
    return Event("state pool", message, found) if found else None


def _replay(message: Message, text: str) -> Event:
    parts = [size(match, message.line) for match in _REPLAY.findall(text)]
    total = sum(part.value for part in parts if part)
    step = sum(part.step for part in parts if part)
    return Event("replay", message, {"replay": Reading(total, message.line, step)} if parts else {})


def _kv(message: Message, text: str) -> Event | None:
    if match := _NO_POOL.match(text):
        return Event("kv pool", message, {"tokens": Reading(int(match[1]), message.line)})
    allocated = text.startswith("KV Cache is allocated")
    if not allocated and not text.startswith("KV Cache VA upper bound"):
        return None
    words = {"dtype": match[1]} if (match := _DTYPE.search(text)) else {}
    before = message.text[: message.text.find(text)] + "KV Cache "
    if label := _LABEL.search(before):
        words["label"] = label[1]
    if not allocated:
        words["reserved"] = "yes"
    return Event("kv pool", message, _fields(message, text, _KV), words)


def _kv_after_capture(message: Message, text: str) -> Event:
    words = {"draft": "yes"} if "draft KV cache allocated" in message.text else {}
    if match := _DTYPE.search(text):
        words["dtype"] = match[1]
    return Event("kv after capture", message, _fields(message, text, _KV), words)


def _graph(message: Message, text: str) -> Event | None:
    match = _GRAPH.match(text) or _SINGLE_GRAPH.match(text)
    if match is None:
        return None
    name = " ".join(match[1].split()) or "decode"
    words = {"name": name}
    if step := _STEP.search(text):
        words["step"] = step[1]
    return Event(f"graph {match[2]}", message, _fields(message, text, _MEMORY), words)


def _closing(message: Message, text: str) -> Event | None:
    found = _fields(message, text, _CLOSING)
    if match := _AVAILABLE.search(text):
        reading = size(match[1], message.line)
        if reading:
            found["free"] = reading
    return Event("closing", message, found) if found else None


def _cap(message: Message, text: str) -> Event | None:
    words: dict[str, str]
    if match := _CAP_STATE.match(text):
        words = {"limit": "state slots", "to": match[1], "slots": match[2], "each": match[3]}
    elif match := _CAP_KV.match(text):
        words = {"limit": "KV cache", "asked": match[1], "to": match[2]}
    elif match := _CAP_CAPTURE.match(text):
        words = {"limit": "KV cache after capture", "asked": match[1], "to": match[2]}
    else:
        return None
    return Event("cap", message, {}, words)


def _cap_tokens(message: Message, text: str) -> Event | None:  # noqa: ARG001
    match = _CAP_TOKENS.search(message.text)
    if match is None:
        return None
    return Event(
        "cap", message, {}, {"limit": "profiled tokens", "asked": match[1], "to": match[2]}
    )


def _window(message: Message, text: str) -> Event:
    words = {"window": "yes"}
    if match := _SWA_POOL.search(text):
        words |= {"swa": match[1], "full": match[2]}
    elif match := _SWA_TOKENS.search(text):
        words["swa"] = match[1]
    return Event("window", message, {}, words)


def _plain(kind: str) -> Callable[[Message, str], Event | None]:
    def read(message: Message, text: str) -> Event:  # noqa: ARG001
        return Event(kind, message)

    return read


_READERS: tuple[tuple[str, Callable[[Message, str], Event | None]], ...] = (
    ("server_args=", _plain("arguments")),
    ("Load weight ", _load),
    ("Init torch distributed begin", _plain("init")),
    ("Mamba Cache is allocated", _state),
    ("ssm_state", _state),
    ("ReplaySSM ring buffers", _replay),
    ("KV Cache ", _kv),
    ("KV cache allocated", _kv_after_capture),
    ("SWAKVPool ", _window),
    ("sliding window memory pool", _window),
    ("Memory pool end", _pools_end),
    ("Capture ", _graph),
    ("max_total_num_tokens=", _closing),
    ("max_running_requests ", _cap),
    ("larger than the profiled value", _cap_tokens),
    ("fired up and ready", _plain("ready")),
)
