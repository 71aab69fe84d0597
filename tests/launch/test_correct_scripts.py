"""Correct launches in many styles: none of them may give a finding of severity error."""

from __future__ import annotations

import pytest

from casebook.launch.read import read
from casebook.launch.source import Source

P = "python -m sglang.launch_server"
P3 = "python3 -m sglang.launch_server"
M = "--model-path Qwen/Qwen3-8B"
JSON = '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'
POD = (
    "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - name: s\n      image: lmsysorg/sglang\n"
)

SCRIPTS: dict[str, tuple[str, str]] = {
    "one line": ("a.sh", f"{P} {M} --tp-size 2\n"),
    "no line end": ("a.sh", f"{P} {M}"),
    "continued": ("a.sh", f"#!/bin/bash\n{P} \\\n  {M} \\\n  --tp 8 --port 30000\n"),
    "last backslash before an empty line": ("a.sh", f"{P} {M} \\\n  --tp-size 2 \\\n\necho done\n"),
    "strict mode": (
        "a.sh",
        f'#!/usr/bin/env bash\nset -euo pipefail\ncd "$(dirname "$0")"\nexec {P} {M}\n',
    ),
    "array": ("a.sh", f'ARGS=(\n  {M}\n  # two GPUs\n  --tp-size 2\n)\n{P} "${{ARGS[@]}}"\n'),
    "array grown": (
        "a.sh",
        f'A=({M})\nif [ -n "$SPEC" ]; then A+=(--speculative-algorithm EAGLE); fi\n{P} "${{A[@]}}"\n',
    ),
    "defaults": (
        "a.sh",
        f'MODEL=${{MODEL:-Qwen/Qwen3-8B}}\nTP=${{1:-2}}\n{P} --model-path "$MODEL" --tp-size "$TP"\n',
    ),
    "extra args": ("a.sh", f'{P} {M} $EXTRA_ARGS "$@"\n'),
    "empty extra": ("a.sh", f'EXTRA=""\n{P} {M} $EXTRA\n'),
    "JSON in single quotes": ("a.sh", f"{P} {M} --json-model-override-args '{JSON}'\n"),
    "JSON in double quotes": ("a.sh", f'{P} {M} --json-model-override-args "{{\\"a\\": 1}}"\n'),
    "JSON in a variable": ("a.sh", f"J='{JSON}'\n{P} {M} --json-model-override-args \"$J\"\n"),
    "JSON in an array": (
        "a.sh",
        f"A=(--json-model-override-args '{JSON}')\n{P} {M} \"${{A[@]}}\"\n",
    ),
    "log": (
        "a.sh",
        f"mkdir -p logs\nnohup {P} {M} > logs/server_$(date +%F).log 2>&1 &\necho $! > server.pid\n",
    ),
    "tee": ("a.sh", f"{P} {M} 2>&1 | tee -a server.log\n"),
    "environment in front": (
        "a.sh",
        f"CUDA_VISIBLE_DEVICES=0,1 NCCL_DEBUG=INFO {P} {M} --tp-size 2\n",
    ),
    "exported": ("a.sh", f"export SGLANG_ENABLE_SPEC_V2=1\nexport HF_HOME=/data/hf\n{P} {M}\n"),
    "exported later": ("a.sh", f"CUDA_VISIBLE_DEVICES=0\nexport CUDA_VISIBLE_DEVICES\n{P} {M}\n"),
    "allexport": ("a.sh", f"set -a\nNCCL_DEBUG=INFO\nset +a\n{P} {M}\n"),
    "variable of the script": ("a.sh", f"OMP_NUM_THREADS=8\necho $OMP_NUM_THREADS\n{P} {M}\n"),
    "numactl": ("a.sh", f"numactl --cpunodebind=0 --membind=0 {P3} {M}\n"),
    "torchrun": ("a.sh", f"torchrun --nproc_per_node 2 -m sglang.launch_server {M}\n"),
    "serve": ("a.sh", "sglang serve --model-path Qwen/Qwen3-8B --tp-size 2\n"),
    "function": ("a.sh", f'launch() {{\n  {P} "$@"\n}}\nlaunch {M} --tp-size 2 &\nwait\n'),
    "loop over ports": (
        "a.sh",
        f"for i in 0 1; do\n  CUDA_VISIBLE_DEVICES=$i {P} {M} --port $((30000 + i)) &\ndone\nwait\n",
    ),
    "two nodes": (
        "a.sh",
        f'{P} {M} --tp-size 16 --dist-init-addr "$HEAD:5000" --nnodes 2 --node-rank "$RANK"\n',
    ),
    "ssh in one text": (
        "a.sh",
        f"ssh gpu '{P} {M} --json-model-override-args '\"'\"'{JSON}'\"'\"''\n",
    ),
    "ssh with a here-document": (
        "a.sh",
        f"ssh gpu bash -s <<'EOF'\nexport X=1\n{P} {M} --port \"$PORT\"\nEOF\n",
    ),
    "script written and run": ("a.sh", f"cat > run.sh <<'EOF'\n{P} {M}\nEOF\nbash run.sh\n"),
    "tmux": ("a.sh", f"tmux new-session -d -s server '{P} {M}'\n"),
    "docker": (
        "a.sh",
        f'docker run --gpus all --shm-size 32g -p 30000:30000 -v ~/.cache/huggingface:/root/.cache/huggingface --env "HF_TOKEN=$HF_TOKEN" --ipc=host lmsysorg/sglang:latest {P3} {M} --host 0.0.0.0\n',
    ),
    "slurm": (
        "job.sh",
        f"#!/bin/bash\n#SBATCH --job-name=s\n#SBATCH --gres=gpu:8\nmodule load cuda\nsrun {P3} {M} --tp-size 8\n",
    ),
    "wait for health": (
        "a.sh",
        f"{P} {M} &\nPID=$!\nuntil curl -sf localhost:30000/health; do sleep 2; done\nkill $PID\n",
    ),
    "case": ("a.sh", f'case "$1" in\n  big) TP=8 ;;\n  *) TP=2 ;;\nesac\n{P} {M} --tp-size $TP\n'),
    "command in a string": ("a.sh", f'CMD="{P} {M} --tp-size 2"\necho "$CMD"\neval "$CMD"\n'),
    "command in an unquoted variable": ("a.sh", f'CMD="{P} {M}"\n$CMD --tp-size 2\n'),
    "chat template": (
        "a.sh",
        f"{P} {M} --chat-template '{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}'\n",
    ),
    "typographic text in a name": (
        "a.sh",
        f"# „quoted“ – a comment\n{P} {M} --served-model-name 'Modell – groß'\n",
    ),
    "lists of values": ("a.sh", f"{P} {M} --cuda-graph-bs 1 2 4 8 --lora-paths a=/x b=/y\n"),
    "benchmark beside it": (
        "a.sh",
        f"{P} {M} &\npython -m sglang.bench_serving --backend sglang --num-prompts 10 --host 0.0.0.0\n",
    ),
    "tabs": ("a.sh", f"{P}\t{M}\t\\\n\t--tp-size\t2\n"),
    "home": ("a.sh", f"{P} --model-path ~/models/qwen --log-level info\n"),
    "prefetch and decode": (
        "a.sh",
        f"{P} {M} --disaggregation-mode prefill --port 30000 &\n{P} {M} --disaggregation-mode decode --port 30001 &\nwait\n",
    ),
    "compose list": (
        "compose.yaml",
        'services:\n  s:\n    image: lmsysorg/sglang\n    environment:\n      - HF_HOME=/data\n    command: ["python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"]\n',
    ),
    "compose string": (
        "compose.yaml",
        f"services:\n  s:\n    image: lmsysorg/sglang\n    entrypoint: {P3}\n    command: >\n      {M}\n      --host 0.0.0.0\n      --port 30000\n",
    ),
    "pod list": (
        "pod.yaml",
        POD
        + '      command: ["python3", "-m", "sglang.launch_server"]\n      args:\n        - --model-path\n        - Qwen/Qwen3-8B\n        - --tp-size=2\n',
    ),
    "pod literal": (
        "pod.yaml",
        POD
        + f"      command: [bash, -c]\n      args:\n        - |\n          {P3} \\\n            {M} \\\n            --tp-size 2\n",
    ),
    "pod folded, no backslash": (
        "pod.yaml",
        POD
        + f"      command: [bash, -c]\n      args:\n        - >-\n          {P3}\n          {M}\n          --tp-size 2\n",
    ),
    "unit": (
        "s.service",
        f'[Unit]\nDescription=server\n[Service]\nEnvironment="CUDA_VISIBLE_DEVICES=0,1" HF_HOME=/data\nExecStart=/opt/venv/bin/{P} \\\n  {M} \\\n  --tp-size 2\nRestart=always\n',
    ),
    "image": (
        "Dockerfile",
        'FROM lmsysorg/sglang:latest\nENV HF_HOME=/data\nENTRYPOINT ["python3", "-m", "sglang.launch_server"]\nCMD ["--model-path", "Qwen/Qwen3-8B"]\n',
    ),
    "image, shell form": (
        "Dockerfile",
        f"FROM lmsysorg/sglang:latest\nCMD {P3} \\\n    {M} \\\n    --host 0.0.0.0\n",
    ),
    "config": (
        "config.yaml",
        "model-path: Qwen/Qwen3-8B\ntp-size: 2\ndisable-radix-cache: true\nmem-fraction-static: 0.8\n",
    ),
    "python list": (
        "start.py",
        'import subprocess, sys\nsubprocess.Popen([sys.executable, "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"])\n',
    ),
}


def test_there_are_enough_of_them() -> None:
    assert len(SCRIPTS) >= 40


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_no_error_is_found_in_a_correct_launch(name: str) -> None:
    file, text = SCRIPTS[name]
    found = read(Source(file, text))
    assert not found.errors, "\n".join(str(f) for f in found.errors)
    assert found.launches or name == "python list", "the launch was not found"
