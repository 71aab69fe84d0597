"""Logs torn, mixed, coloured and cut: what is read is right, or it is not read."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_logs import Made, made_log, stamped, whole

from casebook.catalog.gpus import GIB
from casebook.errors import CasebookError
from casebook.measure import Measurement, read_log

AGES = st.sampled_from(["0.5.9", "0.5.13", "0.5.20"])
RANKS = st.sampled_from(
    [("",), ("TP0", "TP1"), ("DP0 TP0 EP0", "DP1 TP1 EP1"), ("PP0 TP0", "PP0 TP1", "PP1 TP0")]
)
MADE = st.builds(
    made_log, AGES, RANKS, hybrid=st.booleans(), draft=st.booleans(), seed=st.integers(0, 6)
)
GARBAGE = st.sampled_from(
    [
        "",
        "\x00\x01",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.66s/it]",
        "Capturing batches (bs=1 avail_mem=21.95 GB): 100%|##########| 36/36 [00:03<00:00]",
        "Load weight end. elapsed=1.97 s, type=Qwen3ForCausalLM, avail mem=16",
        "KV Cache is allocated. #tokens: 9928",
        "max_total_num_tokens=99, chunked_pre",
        "avail mem=nan GB",
        "Load weight begin. avail mem=nan GB",
        "Memory pool end. avail mem=inf GB",
        "W1001 12:00:00 torch/distributed warning",
        "FutureWarning: the class is deprecated",
    ]
)


def check(found: Measurement, truth: Mapping[str, float], every: bool) -> None:
    for name, reading in found.figures.items():
        if name not in found.assumed:
            assert name in truth, name
            wanted = truth[name] * GIB if reading.step else truth[name]
            assert reading.agrees(wanted), (name, reading, truth[name])
    if every:
        assert found.figures.keys() == truth.keys()


def mixed(made: Made, data: st.DataObject, keep: st.SearchStrategy[bool]) -> list[str]:
    """Each rank's lines in their order, the ranks interleaved, some lines lost."""
    queues = {rank: list(lines) for rank, lines in made.lines.items()}
    lines = []
    while queues:
        rank = data.draw(st.sampled_from(sorted(queues)))
        if data.draw(keep):
            lines.append(stamped(rank, queues[rank][0]))
        queues[rank].pop(0)
        if not queues[rank]:
            del queues[rank]
    return lines


@given(MADE, st.data())
@settings(max_examples=60, deadline=None)
def test_ranks_interleaved(made: Made, data: st.DataObject) -> None:
    text = "\n".join([stamped("", made.arguments), *mixed(made, data, st.just(True))])
    (server,) = read_log(text)
    assert {rank.rank for rank in server.ranks} == set(made.truth)
    for rank in server.ranks:
        check(rank, made.truth[rank.rank], every=True)
        assert rank.outcome == "started"


@given(MADE, st.data(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_lost_lines_leave_no_wrong_figure(made: Made, data: st.DataObject, named: bool) -> None:
    lines = mixed(made, data, st.sampled_from([True, True, True, False]))
    assume(lines)
    if named:
        lines.insert(0, stamped("", made.arguments))
    for server in read_log("\n".join([*lines, ""])):
        for rank in server.ranks:
            check(rank, made.truth[rank.rank], every=False)


@given(MADE, st.data(), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=60, deadline=None)
def test_colours_and_rubbish_change_nothing(made: Made, data: st.DataObject, end: str) -> None:
    lines = []
    for line in whole(made).splitlines():
        at = data.draw(st.integers(0, len(line)))
        colour = data.draw(st.sampled_from(["", "\x1b[32m", "\x1b[1;31m", "\x1b[0m", "^[[0m"]))
        lines += [*data.draw(st.lists(GARBAGE, max_size=1)), line[:at] + colour + line[at:]]
    assume("\0" not in end.join(lines)[:4096])
    (server,) = read_log(end.join([*lines, ""]))
    for rank in server.ranks:
        check(rank, made.truth[rank.rank], every=True)
    assert server.outcome == "started"


@given(MADE, st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_cut_anywhere(made: Made, part: float) -> None:
    text = whole(made)
    text = text[: int(len(text) * part)]
    try:
        servers = read_log(text + "\n")
    except CasebookError:
        return
    for server in servers:
        for rank in server.ranks:
            check(rank, made.truth[rank.rank], every=False)


@given(MADE, st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_beginning_is_missing(made: Made, part: float) -> None:
    text = whole(made)
    text = text[int(len(text) * part) :].partition("\n")[2]
    try:
        servers = read_log(text + "\n")
    except CasebookError:
        return
    for server in servers:
        for rank in server.ranks:
            check(rank, made.truth[rank.rank], every=False)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: f"2026-10-01T12:00:00.123456789Z {line}",
        lambda line: f"Oct 01 12:00:00 node-7 python3[4242]: {line}",
        lambda line: f"sglang-1  | {line}",
        lambda line: f"[pod/sglang-0/server] {line}",
        lambda line: f"0: {line}",
        lambda line: f"> {line}",
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026"}),
        lambda line: f"Loading shards: 100%|##| 2/2 [00:01<00:00]\r{line}",
    ],
    ids=["docker", "journald", "compose", "kubectl", "srun", "quoted", "json-file", "progress"],
)
def test_what_runtimes_put_around_a_line(wrap) -> None:
    made = made_log("0.5.13", ("TP0", "TP1"), draft=True)
    (server,) = read_log("\n".join(wrap(line) for line in whole(made).splitlines()))
    assert server.arguments is not None
    assert server.arguments["speculative_algorithm"] == "EAGLE"
    for rank in server.ranks:
        check(rank, made.truth[rank.rank], every=True)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_one_rank_tears_the_line_of_another(data: st.DataObject) -> None:
    made = made_log("0.5.20", ("TP0", "TP1"), draft=data.draw(st.booleans()))
    first, second = ([stamped(rank, text) for text in made.lines[rank]] for rank in ("TP0", "TP1"))
    lines = [stamped("", made.arguments)]
    for mine, other in zip(first, second, strict=True):
        at = data.draw(st.integers(0, len(mine)))
        lines += [mine[:at] + other, mine[at:]]
    for server in read_log("\n".join(lines)):
        for rank in server.ranks:
            check(rank, made.truth[rank.rank], every=False)


@given(st.one_of(st.text(), st.binary(), st.lists(GARBAGE).map("\n".join)))
@settings(max_examples=150, deadline=None)
def test_anything_is_read_or_refused(text: str | bytes) -> None:
    try:
        read_log(text if isinstance(text, bytes) else text + "\n")
    except CasebookError as error:
        assert "\n" not in str(error)
