"""From the words of a command to a launch."""

import pickle
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook.errors import LaunchError
from casebook.launch import Launch

MODEL = ("--model-path", "Qwen/Qwen3.6-27B")
ENTRIES = [
    "python -m sglang.launch_server",
    "python3.12 -u -m sglang.launch_server",
    "python -X dev -W ignore -m sglang.launch_server",
    "python -um sglang.launch_server",
    "python -msglang.launch_server",
    "python3.13t -m sglang.srt.launch_server",
    "/opt/venv/bin/python /x/sglang/launch_server.py",
    "python3 sglang/launch_server.py",
    "python -m sglang serve",
    "sglang serve",
    "/opt/venv/bin/sglang serve",
]
words = st.lists(st.text(st.characters(exclude_characters="\0"), max_size=12), max_size=8)


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_points(entry: str) -> None:
    launch = Launch.from_text(f"{entry} --model-path Qwen/Qwen3.6-27B")
    assert launch.argv == MODEL
    assert launch.entry == entry
    assert launch.words() == [*entry.split(), *MODEL]


@pytest.mark.parametrize(
    "wrapper",
    [
        "nohup",
        "exec",
        "exec -a sglang",
        "time -p",
        "setsid -w",
        "command --",
        "nice -n 5",
        "nice -n5",
        "taskset -c 0-7",
        "timeout -k 5 600",
        "stdbuf -oL",
        "numactl --cpunodebind=0 --membind 0",
        "numactl -N 0 -m 0",
        "sudo -u serve",
        "/usr/bin/env",
        "env -- nohup",
    ],
)
def test_wrappers_are_taken_off(wrapper: str) -> None:
    launch = Launch.from_text(f"{wrapper} python -m sglang.launch_server --tp 8")
    assert launch.argv == ("--tp", "8")
    assert launch.entry == "python -m sglang.launch_server"


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("VAR=1 sglang serve", {"VAR": "1"}),
        ("A=1 B='x y' nohup env C=a=b sglang serve", {"A": "1", "B": "x y", "C": "a=b"}),
        ("A=1 B=2 env -u A sglang serve", {"B": "2"}),
        ("A=1 B=2 env --unset=A -uB sglang serve", {}),
        ("A=1 env -i B=2 sglang serve", {"B": "2"}),
        ("A=1 env - B=2 sglang serve", {"B": "2"}),
        ("env -C /srv A=1 sglang serve", {"A": "1"}),
        ("env -S 'A=1 sglang serve'", {"A": "1"}),
        ("EMPTY= sglang serve", {"EMPTY": ""}),
    ],
)
def test_environment(text: str, env: dict[str, str]) -> None:
    launch = Launch.from_text(f"{text} --tp 8")
    assert dict(launch.env) == env
    assert launch.argv == ("--tp", "8")


def test_bare_arguments_are_those_of_the_server() -> None:
    launch = Launch.from_text("A=1 --tp 8")
    assert (launch.argv, dict(launch.env)) == (("--tp", "8"), {"A": "1"})
    assert launch.entry == "python -m sglang.launch_server"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "A=1",
        "nohup",
        "env -u",
        "timeout",
        "python",
        "python -m",
        "python -u",
        "python -m vllm.entrypoints.openai.api_server --model x",
        "python -c 'import sglang' --tp 8",
        "sglang generate --x",
        "sglang",
        "torchrun --nproc-per-node 8 -m sglang.launch_server",
        "docker run image python -m sglang.launch_server",
        "mysglang/launch_server.py",
        "python /x/mysglang/launch_server.py",
        "sglang serve 'unclosed",
        'env -S "sglang serve \'unclosed"',
        "''",
    ],
)
def test_what_is_no_launch(text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        Launch.from_text(text)
    assert "\n" not in str(caught.value)


def test_a_nul_is_refused() -> None:
    with pytest.raises(LaunchError, match="NUL"):
        Launch.from_words(["sglang", "serve", "--served-model-name", "a\0b"])


@pytest.mark.parametrize(
    "text",
    [
        "vllm --api-key sk-123456",
        "sshpass -p sk-123456 ssh host",
        "curl https://user:sk-123456@host/",
        "https://user:sk-123456@host/ x",
        "python serve.py sk-123456",
        "python -c sk-123456",
    ],
)
def test_an_error_repeats_no_secret(text: str) -> None:
    with pytest.raises(LaunchError) as caught:
        Launch.from_text(text)
    assert "sk-123456" not in str(caught.value)


def test_a_continued_line_is_joined_as_a_shell_joins_it() -> None:
    text = "sglang serve \\\n  --tp 8 \\\r\n  --model-\\\npath x"
    assert Launch.from_text(text).argv == ("--tp", "8", "--model-path", "x")
    # An escaped backslash at the end of a line continues nothing.
    assert Launch.from_text("sglang serve --a b\\\\\n--c d").argv == ("--a", "b\\", "--c", "d")


@given(words)
def test_words_survive_the_way_through_text(arguments: list[str]) -> None:
    text = shlex.join(["sglang", "serve", *arguments])
    if "\\\n" not in text and "\\\r\n" not in text:
        assert Launch.from_text(text).argv == tuple(arguments)


@given(words)
def test_any_words_are_a_launch_or_a_launch_error(arguments: list[str]) -> None:
    try:
        launch = Launch.from_words(arguments)
    except LaunchError:
        return
    assert [*launch.argv] == arguments[len(arguments) - len(launch.argv) :]
    str(launch), repr(launch), launch.lines()


@given(st.text())
def test_any_text_is_a_launch_or_a_launch_error(text: str) -> None:
    try:
        Launch.from_text(text)
    except LaunchError:
        return


def test_words_that_are_no_text_and_very_long_ones() -> None:
    odd = ("--served-model-name", b"caf\xe9".decode("utf-8", "surrogateescape"), "x" * 1_000_000)
    assert Launch.from_words(["sglang", "serve", *odd]).argv == odd


def test_value_of_takes_the_last_and_both_spellings() -> None:
    launch = Launch.from_text("--tp 1 --tp=2 --x --tp")
    assert launch.value_of("--tp", "--tensor-parallel-size") == "2"
    assert launch.value_of("--none") is None


def test_replacing_and_without() -> None:
    launch = Launch.from_text("A=1 sglang serve --model m --tokenizer=m --tp 8 --name=mm")
    replaced = launch.replacing("m", "n")
    assert replaced.argv == ("--model", "n", "--tokenizer=n", "--tp", "8", "--name=mm")
    assert (replaced.env, replaced.entry) == (launch.env, launch.entry)
    assert launch.without("--tp").value_of("--tp") is None
    assert launch.without("--tokenizer").argv == ("--model", "m", "--tp", "8", "--name=mm")


def test_a_launch_is_a_value() -> None:
    given_env = {"A": "1"}
    launch = Launch(("--tp", "8"), given_env)
    given_env["A"] = "2"
    assert launch.env["A"] == "1"
    with pytest.raises(TypeError):
        launch.env["A"] = "3"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(launch)) == launch
    assert len({launch, Launch(("--tp", "8"), {"A": "1"})}) == 1
    assert Launch.of(launch) is launch
    assert Launch.of("--tp 8").argv == Launch.of(["--tp", "8"]).argv


def test_shown_without_secrets_one_option_a_line() -> None:
    launch = Launch.from_text("HF_TOKEN=hf_abcdef B='x y' sglang serve --tp 8 --api-key sk-123456")
    assert launch.lines().splitlines() == [
        "HF_TOKEN='<secret>' B='x y' sglang serve \\",
        "  --tp 8 \\",
        "  --api-key '<secret>'",
    ]
    assert "hf_abcdef" not in repr(launch)
    assert "sk-123456" not in str(launch)
