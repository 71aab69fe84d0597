"""What is made of a log: its servers, ranks, workers, limits and errors."""

import gzip
from pathlib import Path

import pytest
from made_logs import made_log, stamped, whole

from casebook.catalog.gpus import GIB
from casebook.measure import ForeignLogError, LogError, read_log

HYBRID_ERROR = (
    "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
    "max_mamba_cache_size=-85 (total_rest_memory=-12.47 GB, mamba_cache_per_req=146.81 MB). Try: (1) "
    "reduce --max-running-requests"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.56 GiB. GPU 0 has a total "
    "capacity of 178.35 GiB of which 9.50 GiB is free. Including non-PyTorch memory, this process has "
    "168.80 GiB memory in use. Of the allocated memory 160.10 GiB is allocated by PyTorch, and 700.00 "
    "MiB is reserved by PyTorch but unallocated."
)


def crash(rank: str, error: str, *functions: str) -> list[str]:
    return [
        stamped(rank, "Scheduler hit an exception: Traceback (most recent call last):"),
        *(f'  File "/x/sglang/srt/a.py", line 1, in {name}' for name in functions),
        "    call()",
        error,
        "",
        stamped("", "Received sigquit from a child process. It usually means the child failed."),
    ]


def test_a_figure_knows_its_line_and_rounding() -> None:
    (server,) = read_log(whole(made_log(draft=True)))
    (rank,) = server.ranks
    reading = rank.figures["ssm_state"]
    assert reading.line == 7
    assert reading.agrees(33.894 * GIB) and not reading.agrees(33.896 * GIB)
    assert rank.figures["state_slots"].step == 0
    assert server.arguments_line == 1 and server.arguments is not None
    assert server.speculative is True
    assert rank.graph_bytes == sum(
        rank.figures[name].value for name in rank.figures if name.endswith("_graphs")
    )


def test_a_path_text_bytes_gzip_and_utf16_are_one(tmp_path: Path) -> None:
    text = whole(made_log())
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.log").write_text(text, encoding="utf-16")
    wanted = read_log(text)
    for given in (text.encode(), *sorted(tmp_path.iterdir()), str(tmp_path / "a.log")):
        assert read_log(given) == wanted


def test_several_servers_in_one_file() -> None:
    first, second = made_log("0.5.13", ("TP0", "TP1")), made_log("0.5.20", seed=3)
    died = [stamped("", first.arguments), stamped("", "Load weight begin. avail mem=9.00 GB")]
    text = whole(first) + "\n".join([*died, *crash("", OOM, "load_model"), ""]) + whole(second)
    one, two, three = read_log(text)
    assert [s.outcome for s in (one, two, three)] == ["started", "died", "started"]
    assert [len(s.ranks) for s in (one, two, three)] == [2, 1, 1]
    assert three.ranks[0].get("kv_tokens") == 400_003


def test_a_restart_shows_without_the_argument_line() -> None:
    lines = [stamped("TP0", text) for text in made_log("0.5.13", ("TP0",)).lines["TP0"]]
    servers = read_log("\n".join([*lines, *lines]))
    assert [s.ranks[0].get("kv_tokens") for s in servers] == [400_000, 400_000]


def test_a_start_that_was_broken_off_and_repeated() -> None:
    made = made_log("0.5.20", ("TP0", "TP1"))
    begun = [stamped("", made.arguments)]
    begun += [stamped(rank, made.lines[rank][1]) for rank in ("TP0", "TP1")]
    late = stamped("TP1", made.lines["TP1"][2])
    again = whole(made_log("0.5.20", ("TP0", "TP1"), seed=2)).splitlines()
    one, two = read_log("\n".join([*begun, again[0], late, *again[1:]]))
    assert [rank.get("weights") is None for rank in one.ranks] == [True, False]
    assert [rank.get("kv_tokens") for rank in two.ranks] == [400_002, 400_009]
    assert not any(rank.assumed for rank in two.ranks)


def test_the_nodes_of_one_server_are_one() -> None:
    texts = made_log("0.5.13", ("TP0", "TP1")).lines
    arguments = "server_args=ServerArgs(model_path='m', nnodes=2, node_rank={})"
    lines = [
        stamped("", arguments.format(0)),
        *(stamped("TP0", text) for text in texts["TP0"]),
        stamped("", arguments.format(1)),
        *(stamped("TP1", text) for text in texts["TP1"]),
    ]
    (server,) = read_log("\n".join(lines))
    assert [rank.rank for rank in server.ranks] == ["TP0", "TP1"]


def test_containers_side_by_side() -> None:
    prefill, decode = (whole(made_log(seed=s)).splitlines() for s in (0, 5))
    lines = [
        f"{name} | {line}"
        for pair in zip(prefill, decode, strict=True)
        for name, line in zip(("prefill-1", "decode-1 "), pair, strict=True)
    ]
    one, two = read_log("\n".join(lines))
    assert (one.stream, two.stream) == ("prefill-1", "decode-1")
    assert (one.ranks[0].get("kv_tokens"), two.ranks[0].get("kv_tokens")) == (400_000, 400_005)


def test_one_block_of_a_pair_is_marked() -> None:
    made = made_log("0.5.13", draft=True)
    text = whole(made).splitlines()
    (whole_server,) = read_log("\n".join(text))
    assert not whole_server.ranks[0].assumed
    lost = [line for line in text if "#tokens" not in line or "K size: 0.76" in line]
    lost = [line for line in lost if "avail mem=24.00" not in line]
    (server,) = read_log("\n".join(lost))
    assert {"kv_tokens", "k", "v", "free_after_pools"} <= server.ranks[0].assumed


def test_sliding_window_pools() -> None:
    lines = [
        "Load weight end. elapsed=1.00 s, type=GptOssForCausalLM, avail mem=60.00 GB, mem usage=12.00 GB.",
        "Use sliding window memory pool. full_layer_tokens=200000, swa_layer_tokens=160000",
        "KV Cache is allocated. #tokens: 160000, K size: 1.10 GB, V size: 1.20 GB",
        "KV Cache is allocated. #tokens: 200000, K size: 2.10 GB, V size: 2.20 GB",
        "SWAKVPool mem usage: 6.60 GB, swa size: 160000, full size: 200000",
        "Memory pool end. avail mem=40.00 GB",
    ]
    (server,) = read_log("\n".join(stamped("", line) for line in lines))
    (rank,) = server.ranks
    assert rank.get("kv_tokens") == 200_000
    assert rank.get("window_kv_tokens") == 160_000
    assert rank.figures["window_k"].agrees(1.10 * GIB)


def test_pools_sized_after_the_graphs() -> None:
    lines = [
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 900000, K size: 40.00 GB, V size: 40.00 GB",
        "Memory pool end. avail mem=90.00 GB",
        "Post-capture KV sizing: max_running_requests 64 -> 48",
        "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 700000, KV size: 62.50 GB, avail mem=9.00 GB",
    ]
    (server,) = read_log("\n".join(stamped("", line) for line in lines))
    (rank,) = server.ranks
    assert rank.get("kv_tokens") == 700_000
    assert rank.figures["kv"].agrees(62.5 * GIB)
    assert (rank.caps[0].limit, rank.caps[0].asked, rank.caps[0].to) == (
        "KV cache after capture",
        64,
        48,
    )


def test_a_limit_is_named() -> None:
    text = (
        "max_running_requests is capped to 24 by the mamba state cache (max_mamba_cache_size=124, 5 state "
        "slots per request). To raise it: increase"
    )
    (server,) = read_log(stamped("TP0", text) + "\n")
    (cap,) = server.ranks[0].caps
    assert (cap.limit, cap.to, cap.slots, cap.slots_per_request) == ("state slots", 24, 124, 5)


@pytest.mark.parametrize(
    ("error", "functions", "kind", "where"),
    [
        (HYBRID_ERROR, ("load", "init_memory_pool"), "hybrid state does not fit", "allocating the KV cache"),
        (OOM, ("__init__", "_init_mamba_pool"), "out of memory", "allocating the state pool"),
        (OOM, ("load_model", "create_weights"), "out of memory", "loading weights"),
        (OOM, ("init_device_graphs", "capture"), "out of memory", "capturing graphs"),
        (OOM, ("event_loop_overlap", "run_batch"), "out of memory", "serving"),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            "mem_fraction_static=0.7",
            (),
            "not enough memory",
            None,
        ),
        (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under "
            "--mem-fraction-static=0.7. Raise --mem-fraction-static above 0.826 (minimum viable = 1 - "
            "available/pre = 0.8205).",
            (),
            "weights leave no room",
            None,
        ),
        (
            "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
            "max_mamba_cache_size=3, mamba_ratio=5, resulting max_num_reqs=0. Try",
            (),
            "too few state slots",
            None,
        ),
        ("NameError: name 'causal_conv1d_fn' is not defined", ("forward",), "exception", None),
    ],
)  # fmt: skip
def test_errors(error: str, functions: tuple[str, ...], kind: str, where: str | None) -> None:
    lines = [
        stamped("", "server_args=ServerArgs(model_path='m')"),
        stamped("TP1", "Load weight begin. avail mem=9.00 GB"),
        *crash("TP1", error, *functions),
    ]
    (server,) = read_log("\n".join(lines))
    assert server.outcome == "died"
    assert server.failure is not None
    assert (server.failure.kind, server.failure.where) == (kind, where)
    assert server.failure.text == " ".join(error.split())[:400]
    (rank,) = server.ranks
    assert (rank.rank, rank.outcome, rank.failures[0].kind) == ("TP1", "died", kind)


def test_figures_of_errors() -> None:
    (server,) = read_log("\n".join(crash("", HYBRID_ERROR)))
    assert server.failure is not None
    assert server.failure.facts["max_mamba_cache_size"] == -85
    assert server.failure.facts["mamba_cache_per_req"] == pytest.approx(146.81 * 2**20)
    (server,) = read_log("\n".join(crash("", OOM)))
    assert server.failure is not None
    assert server.failure.requested == round(18.56 * GIB)
    assert server.failure.facts["total"] == pytest.approx(178.35 * GIB)
    assert server.failure.facts["reserved"] == 700 * 2**20


def test_killed_by_the_system() -> None:
    text = "Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a"
    (server,) = read_log(whole(made_log())[:400] + "\n" + stamped("", text) + "\n")
    assert server.failure is not None and server.failure.kind == "killed"


def test_a_caught_traceback_is_no_end() -> None:
    made = made_log()
    lines = whole(made).splitlines()
    trace = [
        "Traceback (most recent call last):",
        '  File "/x/sglang/srt/a.py", line 1, in probe',
        "ImportError: no module named optional",
    ]
    (server,) = read_log("\n".join([*lines[:5], *trace, *lines[5:]]))
    assert server.outcome == "started"
    (server,) = read_log("\n".join([*lines[:5], *trace]))
    assert server.outcome == "died"


def test_rejected_arguments() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "/x/sglang/srt/server_args.py", line 2453, in _handle_mamba_radix_cache',
        "ValueError: mamba extra_buffer is not compatible with --disable-radix-cache",
    ]
    (server,) = read_log("\n".join(trace))
    assert server.outcome == "died" and not server.has_memory_lines
    assert server.failure is not None and server.failure.text.startswith("ValueError: mamba extra")


def test_a_log_without_a_memory_line_is_no_error() -> None:
    (server,) = read_log(stamped("", made_log().arguments) + "\n")
    assert not server.has_memory_lines
    assert (server.ranks, server.outcome) == ((), "unknown")


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("INFO 10-01 12:00:00 [api_server.py:1895] vLLM API server version 0.12.0", "vLLM"),
        ("(EngineCore_DP0 pid=7) INFO 10-01 GPU KV cache size: 1,234,560 tokens", "vLLM"),
        ("[10/01/2026-12:00:00] [TRT-LLM] [I] KV cache quota set", "TensorRT-LLM"),
        ("llama_model_loader: loaded meta data with 33 key-value pairs", "llama.cpp"),
        ("time=2026 level=INFO source=server.go:104 msg=\"system memory\"", "Ollama"),
        ('10.0.0.1 - - [01/Oct/2026:12:00:00 +0000] "GET /v1 HTTP/1.1" 200 12 "-" "curl"', "nginx"),
        ("2026 INFO text_generation_launcher: Starting shard 0", "Text Generation Inference"),
    ],
)  # fmt: skip
def test_another_servers_log_is_named(text: str, server: str) -> None:
    with pytest.raises(ForeignLogError, match=server) as found:
        read_log(f"first line\n{text}\n")
    assert (found.value.server, found.value.line) == (server, 2)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"ELF\0\0", "binary"),
        (b"hello\nworld\n", "no line of an SGLang server's start"),
    ],
)
def test_what_is_no_log(data: bytes, what: str) -> None:
    with pytest.raises(LogError, match=what):
        read_log(data)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be read"):
        read_log(tmp_path / "none.log")
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b\x08broken")
    with pytest.raises(LogError, match="cannot be read"):
        read_log(tmp_path / "bad.gz")


def test_failures_without_end() -> None:
    lines = crash("TP0", OOM, "load_model") * 3000
    (server,) = read_log("\n".join(lines))
    assert server.outcome == "died"


def test_a_long_log_takes_seconds() -> None:
    busy = stamped("TP0", "Decode batch, #running-req: 32, #token: 1, token usage: 0.41") + "\n"
    text = whole(made_log("0.5.13", ("TP0",))) + busy * 400_000
    (server,) = read_log(text)
    assert server.ranks[0].get("kv_tokens") == 400_000
