"""A parser taken from the template is what adding the options would have made it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from casebook_inside import environ, recorder, template


class Arguments:
    """SGLang's side: options, one of whose choices depends on the environment."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--model-path", required=True)
        group = parser.add_argument_group("more")
        group.add_argument("--page-size", type=int, default=1, choices=[1, 2])
        if os.environ.get("TOY_EXTRA") == "1":
            parser.add_argument("--extra")


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Arguments]]:
    monkeypatch.delenv("TOY_EXTRA", raising=False)
    kind, state = type("Own", (Arguments,), {}), os.environ.__class__
    template.install(kind, str(Path(__file__).parent))
    yield kind
    recorder.activate(None)
    environ.listen(None)
    os.environ.__class__ = state


def parser_of(kind: type[Arguments]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sglang serve")
    kind.add_cli_args(parser)
    return parser


def test_it_parses_and_refuses_like_its_own(
    arguments: type[Arguments], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, plain = parser_of(arguments), parser_of(Arguments)
    assert ours.format_help() == plain.format_help()
    words = ["--model-path", "m", "--page-size", "2"]
    assert ours.parse_args(words) == plain.parse_args(words)
    with pytest.raises(SystemExit):
        ours.parse_args(["--page-size", "3"])
    assert "sglang serve: error" in capsys.readouterr().err


def test_an_environment_that_differs_gets_a_parser_of_its_own(
    arguments: type[Arguments], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--extra" not in parser_of(arguments)._option_string_actions
    monkeypatch.setenv("TOY_EXTRA", "1")
    assert "--extra" in parser_of(arguments)._option_string_actions


def test_what_was_recorded_while_adding_is_told_again(arguments: type[Arguments]) -> None:
    record = recorder.Recorder(str(Path(__file__).parent))
    recorder.activate(record)
    parser_of(arguments)
    recorder.activate(None)
    assert [(e["kind"], e["name"]) for e in record.events] == [("env", "TOY_EXTRA")]


def test_a_parser_that_has_options_already_is_not_overwritten(arguments: type[Arguments]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mine")
    arguments.add_cli_args(parser)
    assert {"--mine", "--model-path"} <= set(parser._option_string_actions)
