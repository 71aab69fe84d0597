"""Published cases of flags that were lost before the parser, or in a config file's merge, by rule.

Ids are those of the collected cases; each script is rebuilt from the mechanism the case gives (for other
servers: with SGLang's command in its place). Out of scope, and why, stands in ``OUT_OF_SCOPE``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casebook.launch.read import read
from casebook.launch.source import Source

ROOT = Path(__file__).parents[2]
RUN = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
POD = (
    "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - name: s\n      image: lmsysorg/sglang\n"
)

CASES: dict[str, tuple[str, str, str, str]] = {
    "ovr-025": (
        "config.yaml",
        "mamba-radix-cache-strategy: extra_buffer\n",
        "config-alias-key",
        "0.5.18",
    ),
    "ovr-037": (
        "a.sh",
        f"{RUN} --max-mamba-cache-size 256 \\\n  --max-mamba-cache-size 2560\n",
        "duplicate-flag",
        "0.5.12",
    ),
    "ovr-080": ("a.sh", "sglang serve --config=config.yaml\n", "config-equals-form", "0.5.18"),
    "ovr-084": ("a.sh", "sglang serve --config\n", "config-without-file", "0.5.18"),
    "ovr-085": ("config.yaml", "enable-metrics: false\n", "config-false-dropped", "0.5.11"),
    "ovr-086": ("config.yaml", "disable-radix-cache: false\n", "config-false-dropped", "0.5.11"),
    "ovr-088": (
        "a.sh",
        "python3 -m verl.trainer.main_ppo \\\n  +actor_rollout_ref.rollout.engine_kwargs.sglang.enable_metrics=False\n",
        "override-false-dropped",
        "0.5.11",
    ),
    "ovr-089": (
        "config.yaml",
        "disable_radix_cache: true\nkv-cache-dtype: null\npage-size: 1\npage-size: 64\ndisable-overlap-schedule: false\n",
        "config-underscore-key",
        "0.5.15.post1",
    ),
    "ovr-091": (
        "a.sh",
        f"{RUN} \\\n  --tp-size 1 \\\n  # comment\n  --page-size 2\n",
        "comment-in-continuation",
        "0.5.11",
    ),
    "ovr-092": (
        "a.sh",
        f"{RUN} \\\n  --tp-size 16\n  --mem-fraction-static 0.8 \\\n  --speculative-algorithm EAGLE\n",
        "missing-backslash",
        "0.5.11",
    ),
    "ovr-094": (
        "a.sh",
        f"{RUN} \\  # comment\n  --page-size 2\n",
        "comment-after-backslash",
        "0.5.11",
    ),
    "ovr-095": ("a.sh", f"{RUN}\n --speculative-algorithm EAGLE\n", "missing-backslash", "0.5.11"),
    "ovr-096": (
        "a.sh",
        "docker run --gpus all lmsysorg/sglang "
        + RUN
        + " \\\n  --json-model-override-args '{\"a\": 1}'\n  --page-size 2\n",
        "missing-backslash",
        "0.5.11",
    ),
    "ovr-097": (
        "a.sh",
        'ARGS=()\nARGS+=("--json-model-override-args" "\'{\\"a\\": 1}\'")\n'
        + RUN
        + ' "${ARGS[@]}"\n',
        "literal-quotes",
        "0.5.11",
    ),
    "ovr-099": (
        "a.sh",
        'run() { bash -c "$*"; }\nrun '
        + RUN
        + " --json-model-override-args '{\"enable_thinking\": false}'\n",
        "json-lost-quotes",
        "0.5.11",
    ),
    "ovr-100": (
        "a.sh",
        "docker exec box bash -c '"
        + RUN
        + ' --json-model-override-args {"rope_scaling":{"rope_type":"yarn"}}\'\n',
        "json-lost-quotes",
        "0.5.11",
    ),
    "ovr-101": (
        "start.py",
        'launch_server_cmd("' + RUN + ' --json-model-override-args \'{\\"a\\": 1}\'")\n',
        "split-without-shell",
        "0.5.11",
    ),
    "ovr-102": (
        "pod.yaml",
        POD
        + "      command: [bash, -c]\n      args:\n        - >-\n          python -m sglang.launch_server \\\n          --model-path $MODEL\n",
        "folded-scalar-continuation",
        "0.5.11",
    ),
    "ovr-103": ("pod.yaml", POD + f'      args: ["{RUN}"]\n', "several-words-in-one", "0.5.11"),
    "ovr-104": (
        "compose.yaml",
        f"services:\n  s:\n    command: >\n      /bin/sh -c '{RUN}\n        --page-size 64'\n",
        "missing-backslash",
        "0.5.11",
    ),
    "ovr-106": (
        "compose.yaml",
        "services:\n  s:\n    command:\n      - -F mqtt://host:1883\n",
        "several-words-in-one",
        "0.5.11",
    ),
    "ovr-107": (
        "pod.yaml",
        POD + '      args: ["--model-path", "x", "--quantization fp8", "--tool-call-parser "]\n',
        "several-words-in-one",
        "0.5.11",
    ),
    "ovr-108": (
        "a.service",
        f"[Service]\nEnvironment=ARGS=--enable-metrics on\nExecStart=/usr/bin/{RUN}\n",
        "systemd-environment-unquoted",
        "0.5.11",
    ),
    "ovr-109": (
        "a.sh",
        "export OLLAMA_HOST=0.0.0.0\nsystemctl restart server\n",
        "environment-not-passed",
        "0.5.11",
    ),
    "ovr-112": (
        "a.sh",
        'ARGS=\'--json-model-override-args {"a":{"b":1}}\'\neval "' + RUN + ' $ARGS"\n',
        "json-lost-quotes",
        "0.5.11",
    ),
    "ovr-113": (
        "start.py",
        'import subprocess\nsubprocess.Popen(["python", "-m", "sglang.launch_server", "--model-path", "x", "--chat-template openchat"])\n',
        "several-words-in-one",
        "0.5.11",
    ),
    "ovr-114": ("a.sh", f"{RUN} \\\r\n  --page-size 2\r\n", "crlf-line-ends", "0.5.11"),
    "ovr-117": (
        "a.sh",
        'EXTRA_ARGS="--json-model-override-args \'{\\"a\\":1}\'"\n' + RUN + " $EXTRA_ARGS\n",
        "literal-quotes",
        "0.5.11",
    ),
}

OUT_OF_SCOPE = {
    "ovr-079": "a launcher's own allow-list drops the flag: not in any text; the ladder shows it from the log",
    "ovr-082": "a fault of mergers before 0.5.8, older than every capsule",
    "ovr-083": "the case does not give the mechanism",
    "ovr-087": "TensorRT-LLM's merge order; SGLang's merger lets the command line win",
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_case_is_found_by_its_rule(case: str) -> None:
    name, text, rule, release = CASES[case]
    found = read(Source(name, text), release=release)
    assert rule in found.rules, (found.rules, [str(one.launch) for one in found.launches])


def test_four_faults_of_one_file_are_four_findings() -> None:
    name, text, _, release = CASES["ovr-089"]
    rules = read(Source(name, text), release=release).rules
    assert {
        "config-underscore-key",
        "config-null",
        "config-duplicate-key",
        "config-false-dropped",
    } <= set(rules)


def test_the_page_lists_each_case_with_its_rule() -> None:
    rows = {
        row.split(" | ")[0].removeprefix("| "): row
        for row in (ROOT / "docs" / "flags_lost.md").read_text("utf-8").splitlines()
        if row.startswith("| ovr-")
    }
    assert set(rows) == set(CASES) | set(OUT_OF_SCOPE)
    for case, (_, _, rule, _) in CASES.items():
        assert f"[{rule}](findings/{rule}.md)" in rows[case]
    for case, reason in OUT_OF_SCOPE.items():
        assert f"not found: {reason}" in rows[case]


def test_no_collected_case_is_left_out() -> None:
    path = ROOT.parent / "shared" / "corpus" / "override_cases.jsonl"
    if not path.is_file():
        pytest.skip("the collection is not beside this checkout")
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    wanted = {c["id"] for c in found if c["kind"] in ("lost-before-parse", "config-merge")}
    assert wanted == set(CASES) | set(OUT_OF_SCOPE)


def test_nine_of_ten_cases_with_a_mechanism_are_found() -> None:
    given = len(CASES) + len(OUT_OF_SCOPE) - 1  # one case does not give its mechanism
    assert len(CASES) / given >= 0.9
    assert len(CASES) + len(OUT_OF_SCOPE) == 32
