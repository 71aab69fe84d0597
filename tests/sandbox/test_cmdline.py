"""What argparse made of the words, seen from a namespace that asks who sets it."""

import argparse
import copy
from collections.abc import Callable
from typing import Any

import pytest

from casebook_inside.cmdline import CommandLine, RecordingNamespace, _nearest

# Hooks change argparse for good: in a child. Prints what one launch's parse left behind.
SCRIPT = """
import argparse, dataclasses, json, sys
from casebook_inside import cmdline

class Upper(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, values.upper())

@dataclasses.dataclass
class Args:
    tp_size: int = 1
    model_path: str = ""
    @classmethod
    def from_cli_args(cls, args):
        args.tp_size = args.tensor_parallel_size
        args.invented = 1
        return cls(**{f.name: getattr(args, f.name) for f in dataclasses.fields(cls)})

def build():
    parser = argparse.ArgumentParser("server")
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--tensor-parallel-size", "--tp", type=int, default=1)
    parser.add_argument("--mamba-radix-cache-strategy", choices=["auto", "extra_buffer"], default="auto")
    parser.add_argument("--shout", action=Upper)
    parser.add_argument("--enable-x", action="store_true")
    parser.add_argument("--flag", action=argparse.BooleanOptionalAction)
    parser.add_argument("--many", nargs="*")
    return parser

cmdline.hook_argparse()
log = cmdline.CommandLine()
cmdline.watch(log)
other = argparse.ArgumentParser("other"); other.add_argument("--x"); other.parse_args(["--x", "1"])
names, code = [], None
try:
    args = build().parse_args(sys.argv[1:])
    Args.from_cli_args(args)
    names = sorted(vars(args))
except SystemExit as stop:
    code = stop.code
cmdline.watch(None)
unseen = build().parse_args(["--model-path", "unseen"])
print(json.dumps({**log.as_record(), "names": names, "code": code, "class": type(unseen).__name__}))
"""
Run = Callable[..., Any]


def test_typed_arguments_and_who_was_typed(in_child: Run) -> None:
    seen = in_child(
        SCRIPT,
        *("--model", "m", "--tp=8", "--shout", "hi", "--enable-x", "--no-flag", "--many", "a", "b"),
    )
    typed = [(t["dest"], t["option"], t["value"], t["default"]) for t in seen["typed"]]
    assert typed == [
        ("model_path", "--model", "m", None),
        ("tensor_parallel_size", "--tp", 8, 1),
        ("shout", "--shout", "HI", None),
        ("enable_x", "--enable-x", True, False),
        ("flag", "--no-flag", False, None),
        ("many", "--many", ["a", "b"], None),
    ]
    assert seen["typed"][0]["options"] == ["--model-path", "--model"]
    assert seen["renamed"] == {"tensor_parallel_size": "tp_size"}
    assert seen["flags"]["tensor_parallel_size"] == ["--tensor-parallel-size", "--tp"]
    assert seen["refusal"] is None
    assert seen["nearest_flags"] == {}
    assert "_casebook_log" not in seen["names"]
    assert seen["class"] == "Namespace"


def test_a_refusal_names_the_nearest_flags_of_unknown_ones_only(in_child: Run) -> None:
    seen = in_child(
        SCRIPT,
        *("--model-path", "m", "--tensor-par", "2", "--mamba-radix-strategy=extra_buffer"),
    )
    assert seen["code"] == 2
    assert "--mamba-radix-strategy=extra_buffer" in seen["refusal"]
    assert list(seen["nearest_flags"]) == ["--mamba-radix-strategy"]
    assert "--mamba-radix-cache-strategy" in seen["nearest_flags"]["--mamba-radix-strategy"]


def test_a_refused_value(in_child: Run) -> None:
    seen = in_child(SCRIPT, "--model-path", "m", "--mamba-radix-cache-strategy", "on")
    assert "invalid choice" in seen["refusal"]
    assert seen["nearest_flags"] == {}


@pytest.fixture
def namespace() -> RecordingNamespace:
    space = RecordingNamespace(CommandLine())
    space.a = 1
    return space


def test_a_namespace_looks_like_any_other(namespace: RecordingNamespace) -> None:
    assert vars(namespace) == {"a": 1}
    assert namespace == argparse.Namespace(a=1)
    assert "a" in namespace
    assert "b" not in namespace
    assert repr(namespace) == "Namespace(a=1)"
    assert argparse.Namespace(**vars(namespace)) == argparse.Namespace(a=1)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copied_namespace_works(
    namespace: RecordingNamespace, duplicate: Callable[[Any], Any]
) -> None:
    twin = duplicate(namespace)
    twin.a = 2
    assert (namespace.a, twin.a) == (1, 2)


def test_very_long_words_cost_no_time_to_compare() -> None:
    log = CommandLine()
    log.parser = argparse.ArgumentParser()
    log.parser.add_argument("--model-path")
    log.words = ["--" + "x" * 1_000_000, b"--\xff".decode("utf-8", "surrogateescape")]
    assert list(log.nearest_flags().values()) == [[], []]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("--enable-ep-moe", "--ep-size"),  # the word that few flags have outweighs the letters
        ("--page-sze", "--page-size"),
        ("--mamba-radix-cache-strategy", "--mamba-scheduler-strategy"),
    ],
)
def test_the_nearest_flag_is_the_one_about_the_same_thing(typed: str, first: str) -> None:
    known = ["--ep", "--ep-size", "--ep-dispatch-algorithm", "--enable-eplb", "--enable-dp-lm-head"]
    known += [f"--enable-{name}" for name in ("mixed-chunk", "metrics", "lora", "p2p")]
    known += ["--page-size", "--tp-size", "--mamba-scheduler-strategy", "--disable-radix-cache"]
    assert _nearest(typed, known)[0] == first


def test_a_flag_that_is_like_none_has_no_nearest() -> None:
    assert _nearest("--zzz", ["--ep-size", "--page-size"]) == []
