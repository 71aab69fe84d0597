"""A ledger held against a log: what agrees, what is off and by how much, what the log alone can tell."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_logs import Age, made_log, whole

from casebook.catalog.gpus import GIB
from casebook.measure import MeasurementError, published_start, read_log
from casebook.measure.commands import FitQuestion, fit, fit_command
from casebook.measure.fit import calibrate, explain, fullest_rank, measured_ledger, residuals
from casebook.measure.tables import figures_table, ranks_table

CENT = GIB / 100


def rank_of(age: Age = "0.5.20", draft: bool = True):
    (server,) = read_log(whole(made_log(age, draft=draft)))
    return server.ranks[0]


@pytest.mark.parametrize("age", ["0.5.9", "0.5.13", "0.5.20"])
@pytest.mark.parametrize("draft", [False, True])
def test_calibration(age: Age, draft: bool) -> None:
    rank = rank_of(age, draft)
    found = calibrate({"total": 178.0 * GIB}, rank)
    assert found.before_load_bytes == pytest.approx(8.0 * GIB, abs=2)
    assert found.weights_bytes == pytest.approx(50.5 * GIB, abs=2)
    assert (found.draft_weights_bytes is not None) == draft
    graphs = 1.31 + 2.32 + (0.41 + 0.52 if draft else 0)
    assert found.graph_bytes == pytest.approx(graphs * GIB, abs=8)
    pools = 0.66 + 33.89 + 12.21 + 12.22
    if draft:
        pools += 27.56 + 0.54 + 3.1 + 0.76 + 0.77
        pools += 0 if age == "0.5.20" else 1.31 + 2.32
    last = 22.3 if draft else 24.0
    assert found.slack_bytes == pytest.approx((119.5 - last - pools) * GIB, abs=32)
    assert found.rounding["slack_bytes"] >= CENT
    assert not found.assumed


def test_residuals_say_which_part_is_off() -> None:
    rank = rank_of()
    ledger = {name: float(r.value) for name, r in measured_ledger(rank).items()}
    assert residuals(ledger, rank)["agrees"].all()
    assert explain(residuals(ledger, rank)) == ()
    ledger["weights"] -= 2 * GIB
    ledger["kv"] += CENT / 2
    ledger["kv_tokens"] += 1000
    table = residuals(ledger | {"unknown": 1.0}, rank).set_index("component")
    assert sorted(table.index[~table["agrees"]]) == ["kv_tokens", "weights"]
    assert table.loc["weights", "percent"] == pytest.approx(100 * 2 / 50.5, rel=1e-6)
    assert explain(table.reset_index()) == (
        "weights: 2.00 GiB more than planned, 50.50 for 48.50 (+3.96 %).",
        "kv_tokens: 1,000 less than planned, 400,000 for 401,000 (-0.25 %).",
    )


def test_a_real_quotation() -> None:
    row = published_start("dflash16-qwen35-4b-94g")
    (server,) = read_log("\n".join([*row.lines, ""]))
    rank = fullest_rank(server)
    found = calibrate({"total": 94.5 * GIB}, rank)
    assert found.before_load_bytes == pytest.approx((94.5 - 93.77) * GIB, abs=2)
    assert found.graph_bytes == pytest.approx((3.85 + 6.13 + 2.17) * GIB, abs=8)
    assert found.assumed == {"free_before_load"}


def test_nothing_to_fit() -> None:
    (server,) = read_log("[2026-10-01 12:00:00] server_args=ServerArgs(model_path='m')\n")
    with pytest.raises(MeasurementError, match="shows no figure"):
        fullest_rank(server)


def test_tables() -> None:
    servers = read_log(whole(made_log("0.5.20", ("TP0", "TP1"))))
    assert list(ranks_table(servers)["kv_tokens"]) == [400_000, 400_007]
    table = figures_table(servers[0].ranks[0]).set_index("figure")
    assert table.loc["weights", "unit"] == "bytes"
    assert ranks_table([]).empty


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "server.log"
    path.write_text(whole(made_log(draft=True)))
    return str(path)


def test_command_without_a_plan(log: str) -> None:
    result = CliRunner().invoke(fit, [log])
    assert result.exit_code == 0, result.output
    assert "ssm_state" in result.output and "33.89 GiB" in result.output
    assert "fitted graph_bytes" in result.output


def test_command_with_a_plan(log: str) -> None:
    asked: list[FitQuestion] = []

    def predict(question: FitQuestion) -> dict[str, float]:
        asked.append(question)
        return {"total": 178 * GIB, "weights": 48.5 * GIB}

    result = CliRunner().invoke(fit_command(predict), ["--gpu", "B200", log])
    assert result.exit_code == 1
    assert "weights: 2.00 GiB more than planned" in result.output
    assert asked[0].gpu == "B200" and asked[0].arguments is not None
    result = CliRunner().invoke(fit_command(predict), ["--gpu", "B200", "--json", log])
    assert json.loads(result.output)["calibration"]["before_load_bytes"] == 8 * GIB


@pytest.mark.parametrize(
    ("words", "what"), [(["--server", "3"], "1 servers"), (["--rank", "TP7"], "no rank 'TP7'")]
)
def test_command_asked_wrongly(log: str, words: list[str], what: str) -> None:
    result = CliRunner().invoke(fit, [*words, log])
    assert isinstance(result.exception, MeasurementError)
    assert what in str(result.exception)
