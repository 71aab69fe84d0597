"""Secrets in *text* (script lines, log lines): known by the name beside them, masked at equal length.

The launch's own Redactor knows the secrets of words. A picture of a script's line needs its columns
kept, so here each character of a secret becomes a dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from casebook.launch.model import Launch
from casebook.launch.secrets import MIN_LENGTH, REDACTED, Redactor, is_secret_name, is_secret_option

MASK = "•"
_LONGEST_NAME = 80
_NAME = re.compile(r"-{0,2}[A-Za-z_][\w.-]*")
_LIKELY = re.compile(r"(?i)key|token|secret|pass|pwd|auth|cred|cookie|jwt|bearer|pat|^-")
_BEHIND = re.compile(
    r"""(?P<by>\\?["']?\s*[=:]\s*|\\?["']?\s*,\s*(?=\\?["'])|\s*,\s*|\s+)
    (?P<value>\\?"(?:[^"\\]|\\.)*\\?"?|\\?'[^']*'?|[^\s"',;|&)\]}]+)""",
    re.VERBOSE,
)
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)[ :=]+([A-Za-z0-9._~+/=-]{4,})")
_IN_URL = re.compile(r"(?<=://)[^/@\s'\"]+(?=@)")
_HUB = re.compile(r"\b(?:hf|sk|ghp|gho|nvapi|glpat|xox[bap])[-_][A-Za-z0-9_-]{8,}")


@dataclass(frozen=True)
class Shield:
    """Knows the secrets of one analysis and keeps them out of texts."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str], launches: Iterable[Launch] = ()) -> Shield:
        """The shield for all secrets named in ``texts`` and held by ``launches``."""
        found: set[str] = set()
        for launch in launches:
            found.update(Redactor.of(launch).secrets)
        for text in texts:
            found.update(text[a:b] for a, b in spans(text))
        pieces = {piece for one in found for piece in (one, one.strip("\"'\\")) if piece}
        kept = [p for p in pieces if len(p) >= MIN_LENGTH and not _harmless(p)]
        return cls(tuple(sorted(kept, key=lambda p: (-len(p), p))))

    def mask(self, text: str) -> str:
        """``text`` at its own length, secrets as dots."""
        for secret in self.secrets:
            text = text.replace(secret, MASK * len(secret))
        for first, last in spans(text):
            text = text[:first] + MASK * (last - first) + text[last:]
        return text

    def text(self, text: str) -> str:
        """``text`` with each secret replaced by a mark."""
        for secret in self.secrets:
            text = text.replace(secret, REDACTED)
        for first, last in reversed(list(spans(text))):
            text = text[:first] + REDACTED + text[last:]
        return text


def _harmless(value: str) -> bool:
    return (
        value.startswith(("$", "{{"))
        or value in ("None", "null", "true", "false", REDACTED)
        or set(value) <= {MASK}
    )


def spans(text: str) -> list[tuple[int, int]]:
    """Where secrets stand in a text, by the names in front of them."""
    found: list[tuple[int, int]] = []
    for named in _NAME.finditer(text):
        name = named[0]
        if len(name) > _LONGEST_NAME or not _LIKELY.search(name):
            continue
        option = name.startswith("-")
        if not (is_secret_option(name) if option else is_secret_name(name)):
            continue
        match = _BEHIND.match(text, named.end())
        # Behind a blank or a comma stands the value of an option only, not that of a variable.
        if (
            match is None
            or match["value"].startswith("--")
            or (match["by"].strip() in ("", ",") and not option)
        ):
            continue
        value = match["value"]
        first, last = match.span("value")
        while value[:1] and value[0] in "\"'\\":
            value, first = value[1:], first + 1
        while value[-1:] and value[-1] in "\"'\\":
            value, last = value[:-1], last - 1
        if last > first and not _harmless(value):
            found.append((first, last))
    for pattern in (_BEARER, _IN_URL, _HUB):
        for match in pattern.finditer(text):
            span = match.span(1) if pattern is _BEARER else match.span()
            if not _harmless(text[span[0] : span[1]]):
                found.append(span)
    return sorted(set(found))
