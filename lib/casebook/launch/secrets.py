"""Keep secrets out of everything that casebook shows or stores.

A secret is known by the name of its option, field or variable, or by its place in a URL; it is never
guessed from its looks. Its text is then removed wherever it turns up, since SGLang's own messages
may repeat it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casebook.launch.model import Launch

REDACTED = "<secret>"
MIN_LENGTH = 4  # a shorter text would redact half the page

# Whole words of a name, so that `tokenizer_path`, `max_total_tokens` or `keypath` are no secrets.
_SECRET_NAME = re.compile(
    r"""(?: ^ | _ )
    (?: api_?keys? | (?:access|account|app|auth|client|deploy|encryption|hmac|license|master|openai
                       |private|service|shared|signing|ssh|storage|subscription|watermark)_key
      | secrets? (?: _\w+ )?
      | (?: \w*pass(?:word|wd|phrase) ) | pwd | credentials? | authorization | bearer | cookie | jwt | pat
      | (?: basic|docker|http|proxy|registry )_auth | (?: access|api|auth|hf )_tokens
      | token (?!_id)
    )
    (?: $ | _(?: b | id | value | file | json | string | config | \d+ ) $ )""",
    re.VERBOSE,
)
# A token of text, or of text to come, is none to log in with.
_TEXT_TOKEN = re.compile(
    r"(?:^|_)(?:per|to|first|next|last|new|inter|each|eos|bos|pad|unk|cls|sep|mask|stop|think|thinking"
    r"|start|end|begin|image|video|audio|draft|special|max|min|num|speculative)_token(?:_\w+)?$"
)
# SGLang's secret options. argparse completes an abbreviation, so any beginning of one counts.
_OPTIONS = ("api-key", "admin-api-key", "ssl-keyfile-password", "watermark-key", "watermark-key-b")
_NOT_ABBREVIATED = frozenset({"ssl-keyfile"})  # a file's name, and an option of its own
_MIN_ABBREVIATION = 2
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s'\"]+(?=@)")
_PLAIN = (str, bytes, bool, int, float, type(None))
_PARTS = ("old", "new", "value", "default", "parsed", "final", "typed")


@lru_cache(maxsize=4096)  # a trail asks of the same few hundred names, thousands of times
def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret."""
    bare = name.lstrip("-").replace("-", "_").replace(".", "_").lower()
    return bool(_SECRET_NAME.search(bare)) and not _TEXT_TOKEN.search(bare)


def is_secret_option(word: str) -> bool:
    """Whether ``word`` is an option, spelled out or abbreviated, whose value is a secret."""
    if not word.startswith("-"):
        return False
    bare = word.lstrip("-").replace("_", "-").lower()
    if is_secret_name(bare):
        return True
    short = len(bare) >= _MIN_ABBREVIATION and bare not in _NOT_ABBREVIATED
    return short and any(option.startswith(bare) for option in _OPTIONS)


@dataclass(frozen=True)
class Redactor:
    """Removes a launch's known secrets from anything."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, launch: Launch) -> Redactor:
        """The redactor that knows the secrets of a launch's arguments and environment."""
        found = [value for name, value in launch.env.items() if is_secret_name(name)]
        for value in launch.env.values():
            found += _inside(value)
        for word, hidden in _hidden(launch.argv):
            if hidden:
                found.append(word.partition("=")[2] if _is_assigned(word) else word)
            found += _inside(word)
        return cls._knowing(found)

    @classmethod
    def _knowing(cls, found: Iterable[str]) -> Redactor:
        # The longest first: one secret may be part of another.
        return cls(tuple(sorted({f for f in found if f}, key=lambda f: (-len(f), f))))

    def text(self, text: str) -> str:
        """``text`` without any known secret."""
        for secret in self.secrets:
            if len(secret) >= MIN_LENGTH:
                for form in _forms(secret):
                    text = text.replace(form, REDACTED)
        return _USER_IN_URL.sub(REDACTED, text) if "://" in text else text

    def words(self, words: Iterable[str]) -> list[str]:
        """Arguments without their secret values."""
        shown: list[str] = []
        for word, hidden in _hidden(words):
            if hidden and _is_assigned(word):
                shown.append(f"{word.partition('=')[0]}={REDACTED}")
            else:
                shown.append(REDACTED if hidden else self.text(word))
        return shown

    def env(self, name: str, value: str) -> str:
        """The value of one environment variable, or the mark."""
        return REDACTED if is_secret_name(name) else self.text(value)

    def value(self, value: Any) -> Any:
        """Any JSON value with each text in it redacted.

        Secrets that came from elsewhere than the command (a configuration file, a default) are known
        by the names that the value itself gives them.
        """
        known = Redactor._knowing([*self.secrets, *_named(value)])
        return known._cleaned(value)

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, str):
            return REDACTED if value in self.secrets else self.text(value)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, Mapping):
            return {self.text(str(k)): self._cleaned(v) for k, v in value.items()}
        if isinstance(value, Sequence):
            return [self._cleaned(item) for item in value]
        return value


def _hidden(words: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each argument, and whether it holds a secret (alone, or behind ``--option=``)."""
    expecting = False
    for word in words:
        if expecting and not word.startswith("--"):
            yield word, True
            expecting = False
            continue
        name, equals, _ = word.partition("=")
        secret = is_secret_option(name)
        yield word, secret and bool(equals)
        expecting = secret and not equals


def _is_assigned(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and is_secret_option(name)


def _inside(text: str) -> Iterator[str]:
    """Secrets that one word or variable holds beside other things: in a URL, in a JSON object."""
    for user in _USER_IN_URL.findall(text):
        yield user.partition(":")[
            2
        ]  # a name alone may be a plain word; it is hidden in its URL only
    if text.partition("=")[2].startswith("{"):
        text = text.partition("=")[2]
    if text.lstrip().startswith(("{", "[")):
        try:
            yield from _named(json.loads(text))
        except (ValueError, RecursionError):
            return


def _named(value: Any) -> Iterator[str]:
    """Texts that a JSON value keeps under a secret's name."""
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, Mapping):
        about = value.get("field") or value.get("dest") or value.get("name")
        secret = isinstance(about, str) and is_secret_name(about)
        for key, item in value.items():
            if is_secret_name(str(key)) or (secret and key in _PARTS):
                yield from _texts(item)
            elif not isinstance(item, _PLAIN):
                yield from _named(item)
    elif isinstance(value, Sequence):
        for item in value:
            if not isinstance(item, _PLAIN):
                yield from _named(item)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not value.startswith("--"):  # a list of options, by the name of what they set
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _texts(item)


def _forms(secret: str) -> tuple[str, ...]:
    """The secret as it is, and as ``repr`` and JSON write it."""
    return tuple(dict.fromkeys([secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]]))
