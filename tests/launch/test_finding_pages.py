"""Each rule has a page; the page's wrong example is found by its rule, the right one is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from casebook.launch.read import read
from casebook.launch.source import Source

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "findings"
NO_EXAMPLE = {
    "script-status",
    "path-stood-in",
    "two-copies-differ",
    "sandbox-limit",
    "shell-complaint",
    "command-not-run",
}
NO_SERVER = {"config-equals-form", "override-false-dropped"}
"""Rules of scripts in which no server's words stand."""
_CALLED = re.compile(r"(?:error|warning|note|make|Finding)\(\s*\"([a-z]+(?:-[a-z]+)+)\"")
_FENCE = re.compile(r"```\w+\n(.*?)```\n", re.DOTALL)


def rules() -> set[str]:
    """Every rule's name in the source."""
    texts = [p.read_text("utf-8") for p in (ROOT / "lib/casebook/launch").glob("*.py")]
    found = {name for text in texts for name in _CALLED.findall(text)}
    return found | {"non-ascii-dash", "non-ascii-quote", "non-ascii-space"}


def pages() -> list[str]:
    return sorted(p.stem for p in PAGES.glob("*.md") if p.stem != "README")


def test_each_rule_has_a_page_and_each_page_a_rule() -> None:
    assert rules() == set(pages())
    assert len(rules()) > 35


@pytest.mark.parametrize("rule", [p for p in pages() if p not in NO_EXAMPLE])
def test_the_page_tells_the_truth(rule: str) -> None:
    text = (PAGES / f"{rule}.md").read_bytes().decode()
    name = re.search(r"in `([^`]+)`", text)
    release = re.search(r"On SGLang ([\w.]+)\.\n", text)
    assert name is not None
    wrong, right = _FENCE.findall(text)
    asked = {"release": release[1]} if release else {}
    found = read(Source(name[1], wrong), **asked)
    assert rule in found.rules
    finding = next(f for f in found.findings if f.rule == rule)
    assert "^" in finding.picture
    assert finding.effect and finding.mend
    good = read(Source(name[1], right), **asked)
    assert rule not in good.rules
    assert good.launches or rule in NO_SERVER
    assert not good.errors, [str(f) for f in good.errors]
