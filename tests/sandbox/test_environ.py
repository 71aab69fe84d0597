"""One access to the environment is one message, and behaves as before."""

from collections.abc import Callable
from typing import Any

SCRIPT = """
import json, os
from casebook_inside import environ
os.environ.clear()
os.environ.update(THERE="1", HOME="/h")
before = os.environ
told = {}
def act(name, function):
    seen = []
    def listener(*args):
        os.environ.get("HOME")  # a listener's own look-ups are not told
        seen.append(args)
    environ.listen(listener)
    try:
        result = function()
    except KeyError:
        result = "KeyError"
    environ.listen(None)
    told[name] = [result if isinstance(result, (str, bool, type(None))) else "", *seen]
act("index", lambda: os.environ["THERE"])
act("index absent", lambda: os.environ["GONE"])
act("get", lambda: os.environ.get("THERE"))
act("getenv", lambda: os.getenv("GONE", "default"))
act("in", lambda: "THERE" in os.environ)
act("not in", lambda: "GONE" in os.environ)
act("set", lambda: os.environ.__setitem__("NEW", "2"))
act("set again", lambda: os.environ.__setitem__("NEW", "3"))
act("delete", lambda: os.environ.__delitem__("NEW"))
act("delete absent", lambda: os.environ.__delitem__("GONE"))
act("setdefault", lambda: os.environ.setdefault("FRESH", "x"))
act("pop", lambda: os.environ.pop("FRESH"))
act("terminal", lambda: os.environ.get("COLUMNS"))
act("bad value", lambda: type(os.environ).__setitem__)
told["same object"] = os.environ is before
told["type errors"] = []
for value in (1, None):
    try:
        os.environ["X"] = value
    except TypeError:
        told["type errors"].append("TypeError")
told["child sees it"] = os.popen("echo $THERE").read().strip()
print(json.dumps(told))
"""


def test_each_access_is_told_once(in_child: Callable[..., Any]) -> None:
    told = in_child(SCRIPT)
    assert told["index"] == ["1", ["read", "THERE", "1", "1"]]
    assert told["index absent"] == ["KeyError", ["read", "GONE", None, None]]
    assert told["get"] == ["1", ["read", "THERE", "1", "1"]]
    assert told["getenv"] == ["default", ["read", "GONE", None, None]]
    assert told["in"] == [True, ["read", "THERE", "1", "1"]]
    assert told["not in"] == [False, ["read", "GONE", None, None]]
    assert told["set"] == [None, ["set", "NEW", None, "2"]]
    assert told["set again"] == [None, ["set", "NEW", "2", "3"]]
    assert told["delete"] == [None, ["unset", "NEW", "3", None]]
    assert told["delete absent"] == ["KeyError"]
    # Python's own setdefault asks, sets, and asks again.
    assert told["setdefault"][:3] == [
        *("x", ["read", "FRESH", None, None], ["set", "FRESH", None, "x"])
    ]
    assert told["pop"] == ["x", ["read", "FRESH", "x", "x"], ["unset", "FRESH", "x", None]]
    assert told["terminal"] == [None]
    assert told["same object"]
    assert told["type errors"] == ["TypeError", "TypeError"]
    assert told["child sees it"] == "1"
