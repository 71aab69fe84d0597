"""What a ``--config`` file loses on its way is told, also where the launch starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.launch import Launch
from casebook.resolution import Verdict, trace
from casebook.resolution.config_notes import config_notes, words_from_file

BASE = "sglang serve --model-path Qwen/Qwen3-8B"


def notes(folder: Path, text: str, form: str = "--config {}") -> list[str]:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return config_notes(Launch.of(f"{BASE} {form.format(path)}"), "0.5.11")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("page-size: 1\npage-size: 64\n", "c.yaml:1:1: the key page-size stands here and again"),
        (
            "disable-overlap-schedule: false\n",
            "c.yaml:1:27: disable-overlap-schedule: false is dropped",
        ),
        ("disable_radix_cache: true\n", "c.yaml:1:1: the key disable_radix_cache is written with"),
        ("kv-cache-dtype: null\n", "c.yaml:1:17: kv-cache-dtype is null"),
    ],
)
def test_each_fault_of_the_file_is_a_note(tmp_path: Path, text: str, said: str) -> None:
    (note,) = notes(tmp_path, text)
    assert note.startswith(said)


def test_no_note_where_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert notes(tmp_path, "page-size: 64\n") == []
    assert notes(tmp_path, "page-size: 1\npage-size: 64\n", "--config={}") == []
    assert config_notes(Launch.of(f"{BASE} --config /no/such/file.yaml"), "0.5.11") == []
    assert config_notes(Launch.of(BASE), "0.5.11") == []


def test_words_of_the_file_are_told_after_a_refusal_without_their_secrets() -> None:
    launch = Launch.of(f"{BASE} --config c.yaml --tp 2")
    words = [
        "--api-key",
        "sk-secret-secret",
        "--no-such",
        "--model-path",
        "Qwen/Qwen3-8B",
        "--tp",
        "2",
    ]
    line = {"words": words, "refusal": "unrecognized arguments: --no-such"}
    (note,) = words_from_file(line, launch)
    assert "--no-such" in note
    assert "secret-secret" not in note
    assert words_from_file({**line, "refusal": None}, launch) == []
    assert words_from_file({**line, "words": words[3:]}, launch) == []


@pytest.mark.capsule
def test_the_notes_reach_the_trail(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("page-size: 1\npage-size: 64\nno-such-key: 1\n", encoding="utf-8")
    trail = trace(f"{BASE} --config {path}")
    assert any("the key page-size stands here" in note for note in trail.notes)
    assert any("come the words `--page-size 64 --no-such-key 1`" in note for note in trail.notes)


@pytest.mark.capsule
@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.5.8.post1", "0.5.13.post1", "0.5.17", "0.5.23"])
def test_the_equals_form_is_lost_from_the_oldest_release_to_the_newest(
    release: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("mem-fraction-static: 0.42\n", encoding="utf-8")
    trail = trace(f"{BASE} --config={path}", release=release)
    assert trail.outcome.starts
    assert trail["config"].verdict is Verdict.LOST
    assert trail["mem_fraction_static"].final != 0.42
