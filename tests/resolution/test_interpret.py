"""From raw events to changes: no-ops dropped, the deciding line named, the right message joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook.launch import Launch
from casebook.resolution import interpret, sources

SOURCE = """\
class ServerArgs:
    def __post_init__(self):
        self._handle_a()

    def _handle_a(self):
        if self.backend == "x":
            self.page_size = 1
            logger.warning("Automatically set.")
        else:
            logger.warning("Nothing to do with pages, only with page_size.")
        self.other = 2
        logger.info("other is 2 now")
        logger.info("unrelated")
        self.third = helper()
"""


@pytest.fixture
def reader(tmp_path: Path) -> interpret.Reader:
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt" / "server_args.py").write_text(SOURCE)
    return interpret.Reader(tmp_path)


def frame(line: int, function: str = "_handle_a", identity: int = 7) -> list[Any]:
    return ["srt/server_args.py", line, function, identity]


def assign(field: str, old: Any, new: Any, line: int, **more: Any) -> dict[str, Any]:
    stack = [frame(line), frame(3, "__post_init__", 1)]
    event = {"kind": "assign", "phase": "parse", "field": field, "old": old, "new": new}
    return {**event, "stack": stack, **more}


def log(message: str, line: int) -> dict[str, Any]:
    stack = [frame(line), frame(3, "__post_init__", 1)]
    return {"kind": "log", "phase": "parse", "level": "INFO", "message": message, "stack": stack}


def test_a_write_of_the_same_value_is_no_change(reader: interpret.Reader) -> None:
    assert interpret.changes([assign("page_size", 1, 1, 7)], reader) == {}


def test_equal_values_of_different_types_are_a_change(reader: interpret.Reader) -> None:
    assert interpret.changes([assign("page_size", True, 1, 7)], reader)["page_size"][0].new == 1


def test_the_message_of_the_same_branch_is_joined(reader: interpret.Reader) -> None:
    events = [assign("page_size", None, 1, 7), log("Automatically set.", 8)]
    (change,) = interpret.changes(events, reader)["page_size"]
    assert change.message is not None
    assert change.message.message == "Automatically set."
    assert change.frame.code == "self.page_size = 1"


def test_the_message_of_an_excluding_branch_is_not(reader: interpret.Reader) -> None:
    events = [assign("page_size", None, 1, 7), log("... with page_size.", 10)]
    (change,) = interpret.changes(events, reader)["page_size"]
    assert change.message is None


def test_a_sibling_branch_may_tell_by_name_and_new_value(reader: interpret.Reader) -> None:
    events = [assign("page_size", 8, 64, 7), log("changing page_size from 8 to 64.", 10)]
    (change,) = interpret.changes(events, reader)["page_size"]
    assert change.message is not None


def test_a_message_that_names_another_changed_argument_is_that_ones(
    reader: interpret.Reader,
) -> None:
    events = [
        assign("page_size", None, 1, 7),
        assign("chunked_prefill_size", None, 2, 7),
        log("The chunked prefill size is adjusted to 2.", 8),
    ]
    found = interpret.changes(events, reader)
    assert found["page_size"][0].message is None
    assert found["chunked_prefill_size"][0].message is not None


def test_a_callers_message_must_be_its_own(reader: interpret.Reader) -> None:
    deeper = log("page_size is 1 now", 900)  # said in another function that the caller calls
    deeper["stack"] = [frame(900, "_other", 5), frame(3, "__post_init__", 1)]
    events = [assign("page_size", None, 1, 7), deeper]
    assert interpret.changes(events, reader)["page_size"][0].message is None


def test_in_a_functions_own_body_the_message_must_name_the_argument(
    reader: interpret.Reader,
) -> None:
    events = [assign("other", None, 2, 11), log("unrelated", 13)]
    assert interpret.changes(events, reader)["other"][0].message is None
    events.append(log("other is 2 now", 12))
    assert interpret.changes(events, reader)["other"][0].message.message == "other is 2 now"


def test_a_message_of_another_call_is_not_joined(reader: interpret.Reader) -> None:
    other = log("Automatically set.", 8)
    other["stack"][0][3] = 99  # the same function, called another time
    events = [assign("page_size", None, 1, 7), other]
    assert interpret.changes(events, reader)["page_size"][0].message is None


def test_a_declaration_is_named_by_the_providers_return(reader: interpret.Reader) -> None:
    event = {
        "kind": "declare",
        "phase": "resolve",
        "field": "page_size",
        "old": None,
        "new": 64,
        "source": "_provider",
        "stack": [["srt/x.py", 5, "declare_resolution", 1], frame(3, "__post_init__", 2)],
        "decided": [["srt/p.py", 40, "_provider", 3]],
    }
    (change,) = interpret.changes([event], reader)["page_size"]
    assert [f.function for f in change.frames] == ["_provider", "__post_init__"]
    assert change.source == "_provider"


def test_what_materialising_writes_is_the_declarations_work(reader: interpret.Reader) -> None:
    declared = {
        **assign("page_size", None, 64, 7),
        "kind": "declare",
        "source": "_p",
        "stack": [frame(7)],
    }
    between = assign("page_size", 64, 1, 11)
    late = assign("page_size", 1, 64, 200)
    late["stack"] = [["srt/o.py", 200, "materialize_declarations", 4]]
    found = interpret.changes([declared, between, late], reader)["page_size"]
    assert [(c.new, c.frame.line) for c in found] == [(64, 7), (1, 11), (64, 7)]


@pytest.mark.parametrize(
    ("message", "field", "named"),
    [
        ("requires page_size=1 in this mode", "page_size", True),
        ("Setting --page-size to 1", "page_size", True),
        ("the page size is 1", "page_size", True),
        ("the page sizes are", "page_size", False),
        ("mypage size", "page_size", False),
        ("nothing", "page_size", False),
        ("The mixed chunked prefill are disabled", "enable_mixed_chunk", True),
        ("metrics are fine", "enable_metrics", False),
    ],
)
def test_naming_an_argument(message: str, field: str, named: bool) -> None:
    assert interpret.names_argument(message, field) is named


@pytest.mark.parametrize(
    ("words", "options", "found"),
    [
        (["--a", "1", "--b"], ["--a"], ["--a 1"]),
        (["--a=1"], ["--a"], ["--a=1"]),
        (["--a", "1", "2", "--b", "3"], ["--a"], ["--a 1 2"]),
        (["--page", "8"], ["--page-size"], ["--page 8"]),
        (["--a", "-1"], ["--a"], ["--a -1"]),
        (["--a", "1", "--a", "2"], ["--a"], ["--a 1", "--a 2"]),
        (["--b", "1"], ["--a"], []),
    ],
)
def test_words_of_an_option(words: list[str], options: list[str], found: list[str]) -> None:
    assert interpret.words_of(words, options) == found


@given(st.lists(st.text(max_size=8), max_size=12))
def test_any_words_can_be_searched(words: list[str]) -> None:
    for text in interpret.words_of(words, ["--model-path", "--model"]):
        assert text.startswith("--mo")


def test_typed_arguments_follow_renames_and_count_repeats() -> None:
    entry = {"dest": "tensor_parallel_size", "option": "--tp", "options": ["--tp"], "value": 4}
    line = {
        "words": ["--tp", "2", "--tp", "4"],
        "typed": [{**entry, "value": 2}, entry],
        "renamed": {"tensor_parallel_size": "tp_size"},
    }
    launch = Launch(("--tp", "2", "--tp", "4"))
    typed = interpret.typed_arguments(line, launch)["tp_size"]
    assert (typed.words, typed.origin, typed.parsed, typed.times) == (
        "--tp 4",
        "command line",
        4,
        2,
    )


def test_words_that_the_command_line_lacks_come_from_a_config_file() -> None:
    line = {
        "words": ["--tp", "4"],
        "typed": [{"dest": "tp_size", "option": "--tp", "options": ["--tp"], "value": 4}],
    }
    assert interpret.typed_arguments(line, Launch(("--config", "x.yaml")))["tp_size"].origin == (
        "config file"
    )


def test_environment_accessors_are_looked_through(reader: interpret.Reader) -> None:
    accessor = ["srt/environ.py", 60, "get", 3]
    event = {
        "kind": "env",
        "operation": "read",
        "name": "SGLANG_X",
        "old": None,
        "new": None,
        "stack": [accessor, frame(11)],
    }
    (access,) = interpret.env_accesses([event, event], reader, {})
    assert access.frame.line == 11


def test_branches_nest_and_functions_start_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(SOURCE)
    source = sources.read(path)
    assert source.function_at(7) == "ServerArgs._handle_a"
    assert source.function_at(1) == "ServerArgs"
    assert source.shared_branch(7, 8) == 2  # the function's body, the if's
    assert source.shared_branch(7, 11) == 1
    assert source.shared_branch(7, 10) == 0  # if and else exclude each other
    assert source.line(999) == ""
