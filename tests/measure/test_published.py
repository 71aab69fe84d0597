"""The published start-ups: complete, consistent with the catalog, and equal to the lines they quote."""

from pathlib import Path

import pytest

from casebook.catalog.gpus import GIB, gpu
from casebook.catalog.models import load_models
from casebook.catalog.releases import release
from casebook.errors import DataError, UnknownNameError
from casebook.measure import (
    LogError,
    Published,
    published,
    published_start,
    published_table,
    read_log,
)

ROWS = published()
QUOTED = [row for row in ROWS if row.lines]


def test_every_row_names_its_source_and_known_things() -> None:
    assert len(ROWS) >= 110
    for row in ROWS:
        assert row.source.startswith(("https://", "published log, index ", "unknown (")), row.id
        assert row.layers_model is None or row.layers_model in load_models(), row.id
        assert row.gpu is None or gpu(row.gpu).id == row.gpu, row.id
        assert row.release is None or release(row.release).version == row.release, row.id
        assert all(word for word in row.flags)


@pytest.mark.parametrize("row", QUOTED, ids=lambda row: row.id)
def test_the_quoted_lines_say_what_the_row_says(row: Published) -> None:
    try:
        servers = read_log("\n".join([*row.lines, ""]))
    except LogError:
        assert row.failure == "exception" and not row.gib
        return
    (server,) = servers
    read = {}
    for rank in server.ranks:
        for name, reading in rank.figures.items():
            assert read.setdefault(name, reading.value) == reading.value or rank.rank != "TP0"
    common = row.figures.keys() & read.keys() - set(row.rounded)
    assert common or server.failures or any(rank.caps for rank in server.ranks)
    assert {name: read[name] for name in common} == {
        name: row.figures[name].value for name in common
    }
    if row.failure and server.failure:
        assert server.failure.kind == row.failure


def test_sizes_are_gib() -> None:
    row = published_start("h100-qwen38-27b-fp8-f085")
    assert row.figures["ssm_state"].value == round(17.58 * GIB)
    assert row.figures["ssm_state"].agrees(125 * 150_994_944)
    assert row.figures["state_slots"].value == 124


def test_table() -> None:
    table = published_table()
    assert len(table) == len(ROWS)
    slots = table.set_index("id").loc["rtx4090x2-qwen35-9b-tp2", "state_slots"]
    assert slots == 186
    assert published_table([]).empty


def test_unknown_id() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean"):
        published_start("h100-qwen38-27b-fp8")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[measurement]]\nid = ", "not TOML"),
        ("[[measurement]]\nid = 'a'\nkind = 'rumour'\n", "measurement a: kind"),
        (
            "[[measurement]]\nid='a'\nkind='log'\nconfidence='low'\nsource='s'\noutcome='started'\n"
            "rounded=['k']\n",
            "rounded names figures",
        ),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements/published.toml").write_text(text)
    monkeypatch.setenv("CASEBOOK_DATA", str(tmp_path))
    with pytest.raises(DataError, match=what):
        published()
