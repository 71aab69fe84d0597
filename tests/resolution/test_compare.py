"""Side by side, over releases, and the release where it changed."""

from __future__ import annotations

import pytest

from casebook.catalog.incident import load_incident
from casebook.errors import CasebookError, UnknownReleaseError
from casebook.launch import Launch
from casebook.resolution import compare, pictures

INCIDENT = load_incident()
ABSENT = Launch.of(INCIDENT.command()).without(INCIDENT.flag)


def test_a_good_release_must_be_older() -> None:
    with pytest.raises(CasebookError, match="older"):
        compare.bisect(ABSENT, compare.starts, good="0.5.11", bad="0.5.9")


def test_an_unknown_release_is_named() -> None:
    with pytest.raises(UnknownReleaseError):
        compare.bisect(ABSENT, compare.starts, good="0.4", bad="0.5.9")


@pytest.mark.capsule
def test_the_error_appears_with_0_5_10() -> None:
    raised = compare.raises(INCIDENT.error_message)
    found = compare.bisect(ABSENT, raised, good="0.5.9", bad="0.5.10.post1")
    assert (found.before, found.first) == ("0.5.9", "0.5.10")
    first = found.diffs[0]
    assert first.function == "_handle_mamba_radix_cache"
    assert "+                        raise ValueError(" in first.diff.replace("\t", " ") or (
        "raise ValueError(" in first.diff
    )


@pytest.mark.capsule
def test_a_predicate_that_holds_at_both_ends_is_refused() -> None:
    with pytest.raises(CasebookError, match=r"holds in 0\.5\.9"):
        compare.bisect(ABSENT, lambda _trail: True, good="0.5.9", bad="0.5.11")


@pytest.mark.capsule
def test_releases_side_by_side_and_as_a_picture() -> None:
    trails = compare.over_releases(ABSENT, ["0.5.9", "0.5.11"])
    table = compare.final_values(trails)
    assert list(table.columns) == ["0.5.9", "0.5.11"]
    assert list(table.loc["disable_radix_cache"]) == ["True", "False"]
    assert "port" not in table.index  # the same everywhere
    stories = compare.side_by_side(trails)
    assert "server_args.py:1764" in stories.loc["disable_radix_cache", "0.5.9"]
    figure = pictures.heat_map(trails, ["disable_radix_cache", "no_such_field"], "title")
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"True", "False", "starts", "rejected"} <= texts
    assert "font-weight: bold" in compare.highlight(table).to_html()


@pytest.mark.capsule
def test_gpus_and_models_side_by_side() -> None:
    launch = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
    by_gpu = compare.over_gpus(launch, ["B200", "H100"])
    chunks = compare.final_values(by_gpu).loc["chunked_prefill_size"]
    assert list(chunks) == ["16384", "8192"]
    by_model = compare.over_models(launch, ["Qwen/Qwen3-8B", "Qwen/Qwen3.6-27B"])
    assert by_model["Qwen/Qwen3.6-27B"]["model_path"].final == "Qwen/Qwen3.6-27B"
    differ = compare.final_values(by_model)
    assert "attention_backend" in differ.index
