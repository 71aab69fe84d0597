"""Rules about what surrounds a server's words: variables, the environment, and flags that another process gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from casebook.errors import nearest
from casebook.launch.field_text import FieldText
from casebook.launch.given import Where, looks_json
from casebook.launch.options import Options
from casebook.launch.suspicion import Suspicion, error, warning
from casebook.launch.through import Server

ENVIRONMENT = re.compile(
    r"(?:SGLANG|SGL|CUDA|NCCL|HF|TORCH|PYTORCH|TRITON|FLASHINFER|NVIDIA|HIP|ROCR|AITER|GLOO|UCX|NVSHMEM"
    r"|TRANSFORMERS|HUGGINGFACE|VLLM|DG|MC|OMP|TOKENIZERS)_\w+|PYTHONPATH|LD_LIBRARY_PATH|OMP_NUM_THREADS"
)

_NAME_IN_TEXT = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def empty_variables(server: Server, options: Options) -> Iterator[Suspicion]:
    words = server.arguments
    assigned = set(server.left_behind) | set(server.env)
    for number, word in enumerate(words):
        option = options.resolve(word.text) if word.text.startswith("--") else None
        if option is None or option.takes not in ("one",):
            continue
        value = words[number + 1] if number + 1 < len(words) else None
        missing = value is None or (value.text.startswith("--") and not value.quoted)
        if not missing and (value is None or value.text):
            continue
        behind = word.value.end
        empties = [e for e in server.inner.empties if behind <= e.at] or [
            e for e in server.invocation.empties if behind <= e.at
        ]
        if not empties:
            continue
        empty = min(empties, key=lambda e: e.at)
        if not missing and value is not None and value.exact and not empty.quoted:
            continue
        near = nearest(empty.name, assigned - {empty.name}, 1)
        at = (empty.at, empty.at + len(empty.name) + 1)
        meaning = (
            f"{word.text} loses its value and the parser refuses it, or takes the next word for it"
            if missing
            else f"{word.text} gets an empty text"
        )
        mend = (
            f"did you mean ${near[0]}?"
            if near
            else f"set {empty.name}, or write ${{{empty.name}:?}} so that the script stops"
        )
        what = f"${empty.name} is {'empty' if empty.known else 'not set in the script'}"
        make = error if empty.known or near else warning
        yield make("empty-variable", at, what, meaning, mend, (word.text,))


def not_expanded(server: Server, where: Where) -> Iterator[Suspicion]:
    for word in server.arguments:
        if re.match(r"(?:--[\w-]+=)?~(?:/|$)", word.text) and not word.reason.startswith("~"):
            yield error(
                "tilde-not-expanded",
                where(word),
                f"`{word.text[:60]}` begins with a tilde that no shell has expanded",
                "the server looks for a folder named `~`",
                'write "$HOME/..." in double quotes, or the whole path',
            )
        match = _NAME_IN_TEXT.search(word.text)
        if match and word.exact and not looks_json(word.text) and "{{" not in word.text:
            yield error(
                "variable-not-expanded",
                where(word),
                f"`{word.text[:60]}` reaches the server with its dollar sign",
                "no shell expands it: it stands in single quotes, behind a backslash, or where no shell reads",
                "use double quotes, or let a shell run the command",
            )


def environment(server: Server, where: Where, used: frozenset[str]) -> Iterator[Suspicion]:
    for name, value in server.left_behind.items():
        if not ENVIRONMENT.fullmatch(name) or name in server.env:
            continue
        at = (
            (max(value.value.start - len(name) - 1, 0), value.value.end)
            if value.value.start >= 0
            else where()
        )
        if server.ended_at:
            yield warning(
                "environment-not-passed",
                at,
                f"{name} is set in the script, but the server is started through `{server.ended_at}`",
                f"`{server.ended_at}` starts it with an environment of its own; the variable does not arrive",
                f"pass it on: {_pass_on(server.ended_at, name)}",
            )
        elif name not in used:
            yield error(
                "export-missing",
                at,
                f"{name} is set but not exported",
                "it is a variable of the shell only; the server does not get it",
                f"write `export {name}=...`, or put it on the server's own line",
            )


def _pass_on(program: str, name: str) -> str:
    if program in ("docker", "podman", "nerdctl"):
        return f"`{program} run -e {name} ...`"
    if program in ("sudo", "doas"):
        return f"`sudo --preserve-env={name} ...`"
    return f"set {name} inside the remote command"


def in_front(server: Server, options: Options, where: Where) -> Iterator[Suspicion]:
    """SGLang's flags among the words of a wrapper or of Python."""
    for word in (*server.before_entry, *server.entry):
        name = word.text.partition("=")[0]
        if name in options.by_name and len(name) > 6 and name not in COMMON_NAMES:
            yield _wrong_process(name, server.via[-1] if server.via else "python", where(word))


COMMON_NAMES = frozenset(
    [
        "--help",
        "--version",
        "--config",
        "--host",
        "--port",
        "--device",
        "--dtype",
        "--log-level",
        "--model",
        "--tokenizer",
        "--revision",
        "--nnodes",
        "--node-rank",
        "--model-path",
        "--served-model-name",
        "--api-key",
        "--quantization",
        "--random-seed",
        "--base-url",
        "--tool-call-parser",
        "--reasoning-parser",
        "--chat-template",
        "--trust-remote-code",
        "--context-length",
    ]
)

FILTERS = frozenset(
    [
        "tee",
        "cat",
        "grep",
        "egrep",
        "tail",
        "head",
        "sed",
        "awk",
        "ts",
        "sleep",
        "wait",
        "echo",
        "mkdir",
        "cp",
        "mv",
        "cd",
        "pv",
        "less",
    ]
)


def _wrong_process(name: str, process: str, at: tuple[int, int]) -> Suspicion:
    return error(
        "flag-to-wrong-process",
        at,
        f"{name} is an option of SGLang's server, but stands among the words of `{process}`",
        f"`{process}` gets it, the server does not",
        f"move {name} behind the server's entry point, before any `|`, `&` or `;`",
        (name,),
    )


def others(name: str, words: Sequence[FieldText], options: Options) -> Iterator[Suspicion]:
    """SGLang's flags among the words of a program that is no server at all (``tee``)."""
    if name not in FILTERS:
        return
    for word in words[1:]:
        flag = word.text.partition("=")[0]
        if flag in options.by_name and len(flag) > 6 and flag not in ("--help", "--version"):
            at = (word.value.start, word.value.end)
            if at[0] >= 0:
                yield _wrong_process(flag, name, at)


_OVERRIDE = re.compile(r"\+{0,2}(?:\w+\.)*engine_kwargs\.sglang\.(\w+)=(?i:false)")


def overrides(words: Sequence[FieldText]) -> Iterator[Suspicion]:
    """``engine_kwargs.sglang.X=False``: a trainer builds SGLang's arguments from it and drops what is false.

    No server stands in such a script; the trainer starts it (verl, before its pull request 7508).
    """
    for word in words[1:]:
        found = _OVERRIDE.fullmatch(word.text)
        if found and word.value.start >= 0:
            yield warning(
                "override-false-dropped",
                (word.value.start, word.value.end),
                f"`{word.text[-60:]}` passes False through another program's overrides",
                "launchers that keep only what is true of such a table leave it out: "
                f"{found[1]} stays at its default",
                "check the server's own log for the value, or set the opposite option",
                (f"--{found[1].replace('_', '-')}",),
            )
