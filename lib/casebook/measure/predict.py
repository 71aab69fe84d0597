"""The plan that a log is held against: of the launch as given, else of the arguments that the log names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from casebook.console import launch_words
from casebook.launch import Launch
from casebook.launch.options import options
from casebook.measure.errors import MeasurementError

if TYPE_CHECKING:
    from casebook.measure.commands import FitQuestion

DEFAULT_RELEASE = "0.5.11"
MEMORY_ARGUMENTS = (
    "model_path", "dtype", "quantization", "context_length", "tp_size", "pp_size", "dp_size",
    "enable_dp_attention", "mem_fraction_static", "max_running_requests", "max_total_tokens",
    "chunked_prefill_size", "page_size", "kv_cache_dtype", "attention_backend",
    "disable_radix_cache", "disable_overlap_schedule", "max_mamba_cache_size", "mamba_ssm_dtype",
    "mamba_full_memory_ratio", "mamba_scheduler_strategy", "mamba_radix_cache_strategy",
    "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
    "speculative_eagle_topk", "speculative_num_draft_tokens", "cuda_graph_max_bs",
)  # fmt: skip
"""The arguments that memory depends on; the others of a log are left out, so that what a plan does not
need (ports, parsers, hosts) cannot stop it."""


def launch_of(arguments: Mapping[str, Any], release: str) -> Launch:
    """The launch that a log's arguments stand for. Raises MeasurementError if they name no model."""
    if not arguments.get("model_path"):
        raise MeasurementError(
            "The arguments that the log names have no model_path; give the launch after `--`."
        )
    accepted = options(release).by_name
    words: list[str] = []
    for field in MEMORY_ARGUMENTS:
        value = arguments.get(field)
        names = [o for o in accepted.values() if o.field == field and not o.alias]
        if not names or value is None or value is False:
            continue
        option = max(names, key=lambda o: len(o.name))  # the long name, not an abbreviation
        words += [option.name] if option.takes == "none" else [option.name, str(value)]
    return Launch(tuple(words))


def predict(question: FitQuestion) -> Mapping[str, float]:
    """The ledger of the plan, by the names of :mod:`casebook.measure.fit`."""
    from casebook.memory.plan import plan

    release = question.release or DEFAULT_RELEASE
    if question.launch:
        launch = Launch.of(launch_words(question.launch))
    else:
        launch = launch_of(question.arguments or {}, release)
    made = plan(launch, question.model, question.gpu or "B200", release=release)
    return made.predicted()
