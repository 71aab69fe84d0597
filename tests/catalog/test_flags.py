"""What to write for a flag that a release does not have."""

from __future__ import annotations

import pytest

from casebook.catalog.flags import advice, load_flags
from casebook.launch.options import options


@pytest.mark.parametrize(
    ("flag", "release", "sentence"),
    [
        ("--mamba-scheduler-strategy", "0.5.20", "in 0.5.20 write --mamba-radix-cache-strategy"),
        ("--mamba-radix-cache-strategy", "0.5.11", "comes with 0.5.14; 0.5.11 does not have it"),
        ("--nsa-decode-backend", "0.5.23", "write --dsa-decode-backend"),
    ],
)
def test_advice(flag: str, release: str, sentence: str) -> None:
    found = advice(flag, release)
    assert found is not None
    assert sentence in found


@pytest.mark.parametrize(
    ("flag", "release"), [("--page-size", "0.5.11"), ("--never-was", "0.5.11")]
)
def test_no_advice_for_a_known_or_an_unheard_of_flag(flag: str, release: str) -> None:
    assert advice(flag, release) is None


def test_every_span_is_in_order() -> None:
    for flag, spans in load_flags().items():
        assert flag.startswith("--")
        assert spans


def test_an_option_that_help_hides_is_known_but_never_proposed() -> None:
    hidden = "--forward-pass-metrics-ipc-name"
    assert advice(hidden, "0.5.23") is None
    assert advice(hidden, "0.5.11") == f"{hidden} comes with 0.5.12; 0.5.11 does not have it yet."
    assert hidden not in options("0.5.23").by_name
    assert hidden not in options("0.5.11").elsewhere


@pytest.mark.capsule
def test_the_file_agrees_with_the_parser_of_0_5_11() -> None:
    from casebook import capsule as capsules
    from casebook.catalog.gpus import gpu
    from casebook.resolution import pool

    worker = pool.worker(capsules.ensure("0.5.11"), gpu("B200").as_device(), {})
    line = worker.call("resolve", argv=["--model-path", "dummy"])["command_line"]
    parsed = {o for options in line["flags"].values() for o in options if o.startswith("--")}
    known = {f for f, spans in load_flags().items() if any(s.covers("0.5.11") for s in spans)}
    assert parsed == known
