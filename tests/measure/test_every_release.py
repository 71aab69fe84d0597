"""Every start-up line that a release's own source can print is read, with every figure in it.

The lines are taken from the source of each release that this machine holds; nothing is restated here.
"""

import re
from pathlib import Path

import pytest
from source_lines import Line, lines_of

from casebook.capsule import store
from casebook.catalog.gpus import GIB
from casebook.catalog.releases import load_releases
from casebook.measure.failures import read_failure
from casebook.measure.formats import read_event
from casebook.measure.lines import open_source

pytestmark = pytest.mark.capsule

# Warnings about a data type and the like, which have the words of a start-up line and no figure of memory.
OTHER_THINGS = re.compile(r"KV Cache might lead to|Set DSA backends|Committed real weights after")


def capsule_folder(release: str) -> Path:
    for row in store.installed():
        if row["release"] == release and row["current"]:
            return Path(row["folder"])
    pytest.skip(f"no capsule of {release} here")


@pytest.mark.parametrize("release", [str(r) for r in load_releases()])
def test_every_line_of_the_release_is_read(release: str) -> None:
    srt = capsule_folder(release) / "site/sglang/srt"
    found = list(lines_of(srt))
    assert len(found) > 25
    missed = [line for line in found if not OTHER_THINGS.search(line.text) and not is_read(line)]
    assert missed == []


def is_read(line: Line) -> bool:
    source = open_source(f"[2026-10-01 12:00:00 DP1 PP0 TP3 EP3] {line.text}\n")
    (message,) = source.messages()
    assert message.rank == "DP1 PP0 TP3 EP3"
    if line.call in ("RuntimeError", "ValueError"):
        failure = read_failure(message, source)
        wanted = {float(v) for v in re.findall(r"=(-?\d+(?:\.\d+)?)(?: GB)?[ ,)]", line.text)}
        return (
            failure is not None
            and failure.kind != "exception"
            and bool(failure.facts or not wanted)
        )
    event = read_event(message)
    if event is None:
        return False
    read = {round(r.value / GIB, 3) for r in event.readings.values() if r.step}
    if event.kind == "replay":
        return read == {round(sum(map(float, line.sizes)), 3)}
    if event.kind == "window":
        return True
    if event.kind == "closing":
        numbers = {int(n) for n in re.findall(r"=(\d+),", line.text)}
        assert numbers == {r.value for r in event.readings.values() if not r.step}
    if event.kind == "cap":
        assert {event.words[k] for k in event.words if k != "limit"} == set(
            re.findall(r"\d{4}", line.text)
        )
    if tokens := re.search(r"(?:#tokens|max_mamba_cache_size): (\d+)", line.text):
        assert int(tokens[1]) in {r.value for r in event.readings.values() if not r.step}
    return {round(float(s), 3) for s in line.sizes} <= read
