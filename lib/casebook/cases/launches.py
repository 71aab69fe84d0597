"""From a case's launch to what SGLang is asked, and to what reading it finds."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from casebook.cases.model import Case, CaseLaunch, FindingStatement
from casebook.launch import Launch
from casebook.launch.finding import Finding
from casebook.launch.mend import read_mended
from casebook.launch.read import read
from casebook.launch.source import Source

CONFIG = "{config}"


@dataclass(frozen=True)
class Prepared:
    """The launch that reaches the server (None if the text starts none), the one that was meant
    (None if it is the same), and the findings on the text."""

    launch: Launch | None
    intended: Launch | None
    findings: tuple[Finding, ...]


def prepare(case: Case, release: str, config: Path) -> Prepared:
    """``config`` is where the case's configuration file was written."""
    given = case.launch
    wanted = any(isinstance(statement, FindingStatement) for statement in case.fault)
    if given.script is not None:
        return _from_script(given, given.script, release)
    launch = command(given, config)
    findings: tuple[Finding, ...] = ()
    if wanted:
        line = Source("command", shlex.join(launch.words()))
        findings = read(line, kind="command", release=release).findings
        if given.config is not None:
            text = Source(config.name, given.config)
            findings += read(text, kind="config", release=release).findings
    return Prepared(launch, None, findings)


def command(given: CaseLaunch, config: Path) -> Launch:
    """The launch of a command line, its environment set."""
    words = [word.replace(CONFIG, str(config)) for word in shlex.split(given.command or "")]
    plain = Launch.of(words)
    return Launch(plain.argv, {**plain.env, **given.env}, plain.entry)


def _from_script(given: CaseLaunch, text: str, release: str) -> Prepared:
    source = Source(given.file, text)
    found = read(source, release=release, environment=given.env or None)
    meant = read_mended(source, release=release, environment=given.env or None)
    arrived = found.launches[0].launch if found.launches else None
    intended = meant.launches[0].launch if meant.launches else None
    if arrived is not None and intended is not None and arrived.argv == intended.argv:
        intended = None
    return Prepared(arrived, intended, found.findings)
