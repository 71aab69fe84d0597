"""The figures that a release computes from model, arguments and rank before it divides any memory.

They come out of a dry run (``RankFacts.of``), so no shape of any model family is restated here. One
dry run gives them; the closed form then varies what leaves them as they are: memory, fractions and
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from casebook.errors import MemoryPlanError
from casebook.memory.rules import rules_of

_POOL = "req_to_token_pool.mamba_pool."


def state_path(name: str) -> str:
    """Where a dry run tells a buffer of the state; ``windows`` are the draft tokens' windows as they
    lie in memory where they overlap."""
    return _POOL + (
        "_intermediate_conv_window_phys" if name == "windows" else f"mamba_cache.{name}"
    )


@dataclass(frozen=True)
class StateFacts:
    """The recurrent state of one rank. Bytes are per slot, over this rank's layers unless said."""

    layers: int
    sized_bytes: int
    """Bytes per slot that the division counts (of the fullest pipeline stage from 0.5.17 on, of the
    whole model before)."""
    conv_bytes: int
    ssm_bytes: int
    ssm_dtype: str
    extra_bytes: int
    """Bytes per slot beyond state and convolution (0.5.22 on)."""
    conv_shapes: tuple[tuple[int, int], ...]
    """Per convolution state: channels and window columns, in the order the release keeps them."""
    conv_itemsize: int
    shared_windows: bool
    """Whether the draft tokens' windows overlap in memory (0.5.14 on, CUDA, top-k 1)."""
    window_axis: int
    """Which of a convolution state's two dimensions is the window."""

    def intermediate_ssm_bytes(self, draft_tokens: int) -> int:
        """Intermediate SSM states of one request: a state per draft token."""
        return self.ssm_bytes * draft_tokens

    def intermediate_conv_bytes(self, draft_tokens: int) -> int:
        """Intermediate convolution windows of one request."""
        total = 0
        for shape in self.conv_shapes:
            window = shape[self.window_axis]
            channels = shape[1 - self.window_axis]
            columns = draft_tokens + window - 1 if self.shared_windows else draft_tokens * window
            total += channels * columns
        return total * self.conv_itemsize * self.layers


@dataclass(frozen=True)
class RankFacts:
    """All that the closed form needs of one rank."""

    release: str
    context_tokens: int
    page_tokens: int
    kv_sized_bytes: int
    """Bytes per token that the division counts (with the draft's where the release does so)."""
    kv_row_bytes: int
    """Bytes per token that the target's KV pool takes."""
    kv_tensors: int
    draft_row_bytes: int
    """Bytes per token that the draft's KV pool takes; 0 without a draft."""
    draft_tensors: int
    slots_per_request: int
    dp_size: int
    ranks: int
    """Processes of the server (tensor times pipeline parallel)."""
    draft_tokens: int
    """Draft tokens per step; 0 without speculation."""
    radix_cache: bool
    table_columns: int
    """Columns of the request-to-token table."""
    table_padding_rows: int
    fixed_overhead_bytes: int
    multimodal_reserve_gib: float
    state: StateFacts | None

    @property
    def slot_bytes(self) -> int:
        """One slot as the pool holds it; 0 without state."""
        return self.state.conv_bytes + self.state.ssm_bytes if self.state else 0

    @property
    def intermediate_bytes(self) -> int:
        """What speculation keeps for one request beside its slots; 0 without."""
        if self.state is None or not self.draft_tokens:
            return 0
        ssm = self.state.intermediate_ssm_bytes(self.draft_tokens)
        return ssm + self.state.intermediate_conv_bytes(self.draft_tokens)

    @property
    def request_bytes(self) -> int:
        """State of one running request: its slots, and what speculation keeps for it."""
        return self.slots_per_request * self.slot_bytes + self.intermediate_bytes

    @classmethod
    def of(cls, answer: Mapping[str, Any], release: str) -> RankFacts:
        """From the answer of a dry run that reached its pools.

        Raises MemoryPlanError where the release's sizing is of a kind that the closed form has no
        rule for (sliding windows, replay, post-capture resizing); the dry run still holds.
        """
        facts, target = answer["facts"], answer["target"]
        if facts["configurator"] != "DefaultPoolConfigurator":
            raise _no_rule(release, f"pools sized by {facts['configurator']}")
        if facts["post_capture"]:
            raise _no_rule(release, "a KV pool that is sized again after graph capture")
        page = int(target["page_size"])
        draft_tokens = int(answer.get("draft_tokens") or 0)
        rows, tensors = _kv_rows(target, page)
        draft = answer.get("draft")
        draft_rows, draft_tensors = _kv_rows(draft, page) if draft else (0, 0)
        state = facts.get("state")
        return cls(
            release=release,
            context_tokens=int(facts["context_len"]),
            page_tokens=page,
            kv_sized_bytes=int(facts["kv_bytes_per_token"]),
            kv_row_bytes=rows,
            kv_tensors=tensors,
            draft_row_bytes=draft_rows,
            draft_tensors=draft_tensors,
            slots_per_request=int(facts["slots_per_request"] or 0),
            dp_size=int(facts["dp_size"]),
            ranks=int(facts["ranks"]),
            table_columns=int(facts["table_columns"]),
            draft_tokens=draft_tokens,
            radix_cache=not answer["limits"]["disable_radix_cache"],
            table_padding_rows=int(facts["table_padding_rows"]),
            fixed_overhead_bytes=int(facts["fixed_overhead_bytes"]),
            multimodal_reserve_gib=float(facts["multimodal_reserve_gib"]),
            state=_state(state, target, release, draft_tokens) if state else None,
        )


def _no_rule(release: str, what: str) -> MemoryPlanError:
    return MemoryPlanError(
        f"The closed form has no rule for {what} in SGLang {release}; use the dry run."
    )


def kv_buffers(pool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The buffers with a row per token, of target or draft; address lists and the like are smaller."""
    tokens = int(pool["max_total_num_tokens"])
    return [
        entry
        for path, entry in pool["pools"].items()
        if path.startswith("token_to_kv_pool.") and entry["bytes"] >= tokens
    ]


def _kv_rows(pool: Mapping[str, Any], page: int) -> tuple[int, int]:
    """Bytes per token of a KV pool's buffers, and how many tensors they are."""
    tokens = int(pool["max_total_num_tokens"]) + page
    found = kv_buffers(pool)
    if not found:
        return 0, 0
    total = sum(entry["bytes"] for entry in found)
    if total % tokens:
        raise MemoryPlanError(
            "The KV pool's bytes are no multiple of its tokens, so the closed form cannot stand in "
            "for it; use the dry run."
        )
    return total // tokens, sum(entry["tensors"] for entry in found)


def _state(
    facts: Mapping[str, Any], target: Mapping[str, Any], release: str, draft_tokens: int
) -> StateFacts:
    if facts["replay"]:
        raise _no_rule(release, "a replayed state (--enable-linear-replayssm)")
    layers = int(facts["layers"])
    itemsize = int(facts["conv_bytes_per_element"])
    shapes = tuple((int(a), int(b)) for a, b in facts["conv_shapes"])
    conv = sum(a * b for a, b in shapes) * itemsize * layers
    sized = int(facts["bytes_per_slot"])
    scale = int(facts["stage_layers"]) / max(int(facts["all_layers"]), 1)
    if rules_of(release).budget == "joint with padding":
        sized = int(sized * scale)
    # The window is the short one of a state's two dimensions.
    axis = 1 if all(b <= a for a, b in shapes) else 0
    made = StateFacts(
        layers=layers,
        sized_bytes=sized,
        conv_bytes=conv,
        ssm_bytes=int(facts["ssm_elements"]) * int(facts["ssm_bytes_per_element"]) * layers,
        ssm_dtype=str(facts["ssm_dtype"]),
        extra_bytes=int(facts["extra_bytes_per_slot"] * scale),
        conv_shapes=shapes,
        conv_itemsize=itemsize,
        shared_windows=False,
        window_axis=axis,
    )
    if not draft_tokens:
        return made
    return _with_windows(made, target, release, draft_tokens)


def _with_windows(
    made: StateFacts, target: Mapping[str, Any], release: str, draft_tokens: int
) -> StateFacts:
    pools = target["pools"]
    windows = pools.get(state_path("windows")) or pools.get(state_path("intermediate_conv_window"))
    if windows is None:
        return made
    rows = int(target["max_running_requests"]) + 1
    for shared in (False, True):
        option = replace(made, shared_windows=shared)
        if option.intermediate_conv_bytes(draft_tokens) * rows == windows["bytes"]:
            return option
    raise _no_rule(release, "the layout of its draft tokens' convolution windows")
