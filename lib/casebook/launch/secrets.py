"""Keep secrets out of everything that casebook shows or stores.

A secret is known by the name of its option or variable, never guessed from its looks. Its text is
then removed wherever it turns up, since SGLang's own messages may repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casebook.launch.model import Launch

REDACTED = "<secret>"
# Whole words of a name, so that `tokenizer`, `max_total_tokens` or `keypath` are no secrets.
_SECRET_NAME = re.compile(
    r"(?:^|[-_])(?:api[-_]?key|access[-_]?key|secret|secrets|password|passwd|credential|credentials"
    r"|auth[-_]?token|token|private[-_]?key|watermark[-_]key(?:[-_]b)?)(?:$|[-_](?:id|value|file))",
    re.IGNORECASE,
)
_MORE_NAMES = frozenset({"ssl_keyfile_password", "admin_api_key", "authorization"})
MIN_LENGTH = 4  # a shorter text would redact half the page


def is_secret_name(name: str) -> bool:
    """Whether an option (``--api-key``), field or variable of this name holds a secret."""
    bare = name.lstrip("-").replace("-", "_").lower()
    return bare in _MORE_NAMES or bool(_SECRET_NAME.search(bare))


@dataclass(frozen=True)
class Redactor:
    """Removes a launch's known secrets from anything."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, launch: Launch) -> Redactor:
        """The redactor that knows the secrets of a launch's arguments and environment."""
        found = [value for name, value in launch.env.items() if is_secret_name(name)]
        expecting = False
        for word in launch.argv:
            name, equals, value = word.partition("=")
            if expecting and not word.startswith("--"):
                found.append(word)
            if word.startswith("--") and equals and is_secret_name(name):
                found.append(value)
            expecting = word.startswith("--") and not equals and is_secret_name(name)
        # The longest first: one secret may be part of another.
        return cls(tuple(sorted({f for f in found if f}, key=len, reverse=True)))

    def text(self, text: str) -> str:
        """``text`` without any known secret."""
        for secret in self.secrets:
            if len(secret) >= MIN_LENGTH:
                text = text.replace(secret, REDACTED)
        return text

    def words(self, words: Iterable[str]) -> list[str]:
        """Arguments without their secret values."""
        shown: list[str] = []
        hide = False
        for word in words:
            name, equals, _ = word.partition("=")
            if hide and not word.startswith("--"):
                shown.append(REDACTED)
            elif equals and word.startswith("--") and is_secret_name(name):
                shown.append(f"{name}={REDACTED}")
            else:
                shown.append(self.text(word))
            hide = word.startswith("--") and not equals and is_secret_name(name)
        return shown

    def env(self, name: str, value: str) -> str:
        """The value of one environment variable, or the mark."""
        return REDACTED if is_secret_name(name) else self.text(value)

    def value(self, value: Any) -> Any:
        """Any JSON value with each text in it redacted."""
        if not self.secrets:
            return value
        if isinstance(value, str):
            return REDACTED if value in self.secrets else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.value(v) for k, v in value.items()}
        if isinstance(value, Sequence):
            return [self.value(item) for item in value]
        return value
