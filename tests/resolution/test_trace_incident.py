"""The incident on SGLang's own code: goldens from the real 0.5.11, and what other releases do."""

from __future__ import annotations

import pytest

from casebook.catalog.incident import load_incident
from casebook.launch import Launch
from casebook.resolution import OutcomeKind, Trail, Verdict, hypotheses, trace

pytestmark = pytest.mark.capsule
INCIDENT = load_incident()
SCRIPT = Launch.of(INCIDENT.command())


@pytest.fixture(scope="module")
def given() -> Trail:
    return trace(SCRIPT, release="0.5.11", gpu="B200")


@pytest.fixture(scope="module")
def absent() -> Trail:
    return trace(SCRIPT.without(INCIDENT.flag), release="0.5.11", gpu="B200", intended=SCRIPT)


def test_with_the_flag_resolution_ends_and_the_flag_is_honoured(given: Trail) -> None:
    assert given.outcome.kind is OutcomeKind.STARTS
    argument = given["mamba_scheduler_strategy"]
    assert argument.verdict is Verdict.HONOURED
    assert (argument.parsed, argument.final) == ("extra_buffer", "extra_buffer")
    assert argument.typed == "--mamba-scheduler-strategy extra_buffer"


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("speculative_algorithm", "NEXTN", "EAGLE"),
        ("max_running_requests", None, 48),
        ("page_size", None, 64),
        ("attention_backend", None, "trtllm_mha"),
        ("chunked_prefill_size", None, 16384),
    ],
)
def test_what_else_0_5_11_decides(given: Trail, field: str, old: object, new: object) -> None:
    argument = given[field]
    assert (argument.parsed, argument.final) == (old, new)
    assert argument.changes[0].old == old
    assert argument.changes[-1].new == new
    assert argument.changes[-1].frame is not None


def test_without_the_flag_the_incidents_error(absent: Trail) -> None:
    assert absent.outcome.kind is OutcomeKind.REJECTED
    failure = absent.outcome.failure
    assert failure is not None
    assert failure.type == INCIDENT.error_type
    assert failure.message.startswith(INCIDENT.error_message)
    assert (failure.frame.file, failure.frame.line) == ("srt/server_args.py", 2453)
    functions = [frame.function for frame in failure.frames]
    assert functions[-2:] == ["_handle_model_specific_adjustments", "_handle_mamba_radix_cache"]


def test_the_trail_names_the_line_that_made_no_buffer(absent: Trail) -> None:
    argument = absent["mamba_scheduler_strategy"]
    assert argument.verdict is Verdict.REJECTED
    assert argument.typed is None
    (change,) = argument.changes
    assert (change.old, change.new) == ("auto", "no_buffer")
    assert change.frame.where == "server_args.py:1082 in _handle_missing_default_values"
    assert change.frame.code == 'self.mamba_scheduler_strategy = "no_buffer"'
    assert "you did not give" in argument.note


def test_the_name_stands_in_the_trail_as_typed(given: Trail) -> None:
    for field in ("model_path", "tokenizer_path", "served_model_name"):
        assert given[field].final == "Qwen/Qwen3.6-27B"
    assert given["model_path"].typed == "--model-path Qwen/Qwen3.6-27B"


def test_a_message_comes_with_the_change_it_explains(given: Trail) -> None:
    message = given["max_running_requests"].changes[-1].message
    assert message is not None
    assert message.message.startswith("Max running requests is reset to 48")
    assert given["speculative_algorithm"].verdict is Verdict.OVERRIDDEN_SILENTLY


def test_environment_reads_are_part_of_the_trail(given: Trail) -> None:
    reads = {access.name: access for access in given.environment if access.operation == "read"}
    access = reads["SGLANG_ENABLE_SPEC_V2"]
    assert (access.value, access.given) == (None, False)
    assert access.frame.function == "_handle_speculative_decoding"


def test_an_environment_variable_of_the_launch_decides(given: Trail) -> None:
    off = trace(Launch.of(f"SGLANG_ENABLE_SPEC_V2=0 {INCIDENT.command()}"), release="0.5.11")
    access = next(a for a in off.environment if a.name == "SGLANG_ENABLE_SPEC_V2")
    assert (access.value, access.given) == ("0", True)
    assert off["disable_overlap_schedule"].final is True
    assert given["disable_overlap_schedule"].final is False
    again = trace(SCRIPT, release="0.5.11")  # and nothing of it stays behind
    assert again["disable_overlap_schedule"].final is False


def test_the_same_launch_gives_the_same_trail(given: Trail) -> None:
    again = trace(SCRIPT, release="0.5.11", gpu="B200")
    assert again.arguments == given.arguments
    assert again.environment == given.environment


def test_the_finding_is_that_the_flag_was_lost(given: Trail, absent: Trail) -> None:
    finding = hypotheses.judge(INCIDENT.flag, INCIDENT.value, given, absent, INCIDENT.error_message)
    assert finding.cause is hypotheses.Cause.LOST
    assert "server_args.py:1082" in finding.paragraph


def test_0_5_9_turns_the_radix_cache_off_instead() -> None:
    trail = trace(SCRIPT.without(INCIDENT.flag), release="0.5.9")
    assert trail.outcome.starts
    radix = trail["disable_radix_cache"]
    assert (radix.parsed, radix.final, radix.verdict) == (False, True, Verdict.DERIVED)
    assert "Disabling radix cache" in radix.message


def test_0_5_15_post1_chooses_extra_buffer_by_itself() -> None:
    trail = trace(SCRIPT.without(INCIDENT.flag), release="0.5.15.post1")
    assert trail.outcome.starts
    argument = trail["mamba_radix_cache_strategy"]
    assert (argument.parsed, argument.final) == ("auto", "extra_buffer")
    change = argument.changes[-1]
    assert change.kind == "declare"
    assert change.frame.where == "overrides.py:1044 in _mamba_radix_cache_resolution"
    alias = trace(SCRIPT, release="0.5.15.post1")  # the old spelling still works there
    assert alias["mamba_radix_cache_strategy"].verdict is Verdict.HONOURED
    said = [line.message for line in alias.log]
    assert any("is deprecated" in message for message in said)
    assert not any("\x1b" in message for message in said)  # its colours are no part of it
    # That the sandbox has no generation configuration is no doing of SGLang's.
    assert not any("generation config" in message for message in said)


@pytest.mark.slow
def test_an_edit_inside_a_value_has_its_line() -> None:
    trail = trace(["--model-path", "Qwen/Qwen3-8B"], release="0.5.17")
    places = [change.where for change in trail["cuda_graph_config"].changes]
    assert "server_args.py:4688 in _handle_gpu_memory_settings" in places
    assert "(edited in place)" not in places


def test_rocm_on_0_5_11_turns_the_radix_cache_off() -> None:
    launch = SCRIPT.without(INCIDENT.flag).without("--mem-fraction-static")
    trail = trace(Launch((*launch.argv, "--mem-fraction-static", "0.85")), gpu="MI300X")
    assert trail.outcome.starts
    assert trail["disable_radix_cache"].final is True
    fraction = trail["mem_fraction_static"]
    assert fraction.verdict in (Verdict.OVERRIDDEN, Verdict.OVERRIDDEN_SILENTLY)
    assert fraction.final == pytest.approx(0.7225)
    assert str(fraction.changes[-1].frame) == "server_args.py:2673"


def test_what_the_vendors_images_set_is_set_for_every_release() -> None:
    trail = trace(["--model-path", "Qwen/Qwen3-8B"], release="0.5.8.post1", gpu="MI300X")
    assert trail.outcome.starts, trail.outcome.sentence  # without it, it asks for vllm's kernels
    assert any("SGLANG_USE_AITER" in note for note in trail.notes)
