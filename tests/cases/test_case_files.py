"""Case files: read, refused by line and nearest key, described by a schema."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from casebook.cases import load_cases, named, read_case, schema
from casebook.cases.places import key_lines, line_of
from casebook.errors import CaseError, UnknownCaseError
from casebook.paths import data_dir

FOLDER = data_dir() / "cases"
COLLECTION = tomllib.loads(Path(__file__).with_name("left_out.toml").read_text("utf-8"))


def test_a_file_is_read(case_file: Path) -> None:
    case = read_case(case_file)
    assert (case.name, case.gpu, case.seen_in) == ("small", "B200", "==0.5.11")
    assert case.fault[0].kind == "argument"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "expected =",
            "expeted =",
            "small.toml:5: there is no key expeted; did you mean expected?",
        ),
        ("expected =", "expeted =", "small.toml:1: expected is missing"),
        (
            "ends_as",
            "end_as",
            "small.toml:19: there is no key fault.0.end_as; did you mean ends_as?",
        ),
        (
            "command =",
            "comand =",
            "small.toml:14: there is no key launch.comand; did you mean command?",
        ),
        ('"argument"\n', '"argumnet"\n', "small.toml:16: fault.0"),
        ('["overridden"]', '["overriden"]', "small.toml:20: fault.0.verdict.0: input should be"),
        ('"==0.5.11"', '"0.5.11 and up"', "small.toml:10: seen_in: '0.5.11 and up' is not a range"),
        ('gpu = "B200"', 'gpu = "B2000"', "small.toml:9: Unknown GPU"),
        ("schema = 1", "schema = 2", "small.toml:1: schema: input should be 1"),
        ("schema = 1", 'schema = 1\nname = "x"', "small.toml:2: a case's name is its file's"),
        ("[launch]", "[launch", "small.toml:13: cannot be read as TOML"),
        ('ends_as = 1\nverdict = ["overridden"]\n', "", "small.toml:16: fault.0: says nothing"),
        ("--page-size 32", "--config {config}", "small.toml:13: launch: needs {config}"),
        (
            "command =",
            'script = "x"\ncommand =',
            "small.toml:13: launch: needs a command or a script",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    case_file: Path, right: str, old: str, new: str, complaint: str
) -> None:
    assert old in right
    case_file.write_text(right.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CaseError) as refused:
        read_case(case_file)
    assert complaint in str(refused.value)


def test_a_name_that_is_no_case(case_file: Path) -> None:
    with pytest.raises(UnknownCaseError, match="Did you mean incident-flag-lost"):
        named(["incident-flag-los"])
    assert [case.name for case in named([str(case_file)])] == ["small"]
    with pytest.raises(CaseError, match="holds no case file"):
        load_cases(case_file.parent / "nothing")


def test_lines_of_keys_in_every_kind_of_table() -> None:
    text = 'a.b = 1\n"c d" = { e = 2 }\n\n[f]\ng = """\nx\n"""\nh = 1\n[[i]]\nj = 1\n[[i]]\nj = 2\n'
    lines = key_lines(text)
    places = [("a", "b"), ("c d", "e"), ("f", "h"), ("i", 0, "j"), ("i", 1), ("i", 1, "j")]
    assert [lines[place] for place in places] == [1, 2, 8, 10, 11, 12]
    assert line_of(lines, ("i", 1, "k")) == 11


def test_the_schema_is_that_of_the_classes() -> None:
    assert (FOLDER / "schema.json").read_text("utf-8") == schema.text()


def test_the_schema_accepts_every_case_and_not_a_wrong_key() -> None:
    form = json.loads(schema.text())
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text("utf-8"))
        jsonschema.validate(table, form)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**table, "expeted": "x"}, form)


def test_every_case_states_where_it_is_seen_and_starts_with_its_schema() -> None:
    cases = load_cases()
    assert len(cases) >= 51
    assert any(name.startswith("incident") for name in cases)
    for name, case in cases.items():
        assert case.title[0].isupper() or case.title[0] in "-`s" or case.title[:1].isalpha(), name
        text = (FOLDER / f"{name}.toml").read_text("utf-8")
        assert text.startswith("#:schema ./schema.json\n"), name


def test_every_report_of_the_collection_is_a_case_or_left_out_with_a_reason() -> None:
    left_out = [entry["id"] for entry in COLLECTION["left_out"]]
    rebuilt = {case.report for case in load_cases().values() if case.report.startswith("ovr-")}
    assert not rebuilt & set(left_out)
    assert len(left_out) == len(set(left_out))
    assert len(rebuilt) + len(left_out) == COLLECTION["total"]
    assert all(entry["reason"].endswith(".") for entry in COLLECTION["left_out"])
