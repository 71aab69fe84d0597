"""What SGLang's merger drops or spoils of a launch's ``--config`` file: told, as no log line says so."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from casebook.errors import CasebookError
from casebook.launch import Launch, Redactor
from casebook.launch.read import read
from casebook.launch.source import read_source


def config_notes(launch: Launch, release: str) -> list[str]:
    """One note per fault of the file behind the word ``--config``; none if it cannot be read here.

    ``--config=FILE`` is another matter: SGLang does not read that file at all (``verdicts.ignored_config``).
    """
    words = launch.argv
    places = [n + 1 for n, word in enumerate(words[:-1]) if word == "--config"]
    if not places:
        return []
    path = Path(words[places[-1]])
    try:
        found = read(read_source(path), kind="config", release=release)
    except (
        CasebookError
    ):  # SGLang says itself what is wrong with it, or the release is not in the catalog
        return []
    return [
        f"{one.place}: {one.what}. {_sentence(one.effect)}"
        for one in found.findings
        if one.rule.startswith("config-")  # what argparse says of the words it says itself
    ]


def words_from_file(line: dict[str, Any], launch: Launch) -> list[str]:
    """A note on the words that the file gave, where argparse refused the words.

    ``line`` is the child's record of the parse. The merger puts the file's words in front of the
    launch's own, less ``--config FILE``.
    """
    words = list(line.get("words", ()))
    if not line.get("refusal") or "--config" not in launch.argv:
        return []
    at = launch.argv.index("--config")
    own = [*launch.argv[:at], *launch.argv[at + 2 :]]
    given = words[: len(words) - len(own)]
    shown = shlex.join(Redactor.of(Launch(tuple(given))).words(given))
    return [f"From the configuration file come the words `{shown}`."] if given else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
