"""One source, read once: the servers it starts, and the findings on the way to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import pandas as pd

from casebook.launch import rules_nested, rules_shell, rules_surroundings, rules_words, shebang
from casebook.launch.field_text import FieldText
from casebook.launch.finding import Finding, Severity, picture, table
from casebook.launch.model import Launch
from casebook.launch.options import Options, options
from casebook.launch.shell_state import state_for
from casebook.launch.shield import Shield
from casebook.launch.source import Place, Source, Text
from casebook.launch.suspicion import Suspicion
from casebook.launch.through import Found, Server, follow

OUTSIDE = "the environment the script is started in may set it"


@dataclass(frozen=True)
class LocatedLaunch:
    """A launch, and where each of its words and variables came from."""

    launch: Launch
    places: tuple[Place | None, ...]
    """Per word of ``launch.argv``."""
    env_places: Mapping[str, Place | None]
    exact: bool
    """Whether the words are what the server gets, whatever the surroundings."""
    reason: str
    """Why they are not certain."""
    via: tuple[str, ...] = ()
    server: Server | None = field(default=None, repr=False)

    def table(self, shield: Shield | None = None) -> pd.DataFrame:
        """One row per word, with file, line and column."""
        from casebook.launch.secrets import Redactor

        words = Redactor.of(self.launch).words(self.launch.argv)
        shield = shield or Shield()
        rows = [
            (number, shield.text(word), str(place) if place else "")
            for number, (word, place) in enumerate(zip(words, self.places, strict=True))
        ]
        return pd.DataFrame(rows, columns=["position", "word", "comes from"])


@dataclass(frozen=True)
class Analysis:
    """What was read from one source."""

    source: Source
    kind: str
    launches: tuple[LocatedLaunch, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    shield: Shield
    found: Found = field(repr=False)

    @cached_property
    def errors(self) -> tuple[Finding, ...]:
        """Findings of severity error."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules that found something."""
        return tuple(dict.fromkeys(f.rule for f in self.findings))

    def table(self) -> pd.DataFrame:
        """One row per finding."""
        return table(self.findings)

    def stages(self, number: int = 0) -> pd.DataFrame:
        """The text of a launch after each shell that reads it."""
        columns = ["read by", "text"]
        if number >= len(self.launches) or self.launches[number].server is None:
            return pd.DataFrame([], columns=columns)
        server = self.launches[number].server
        assert server is not None
        rows = [
            (stage.reader, self.shield.text(stage.text.text.strip())) for stage in server.stages
        ]
        rows.append(("the server (argv)", str(self.launches[number].launch)))
        return pd.DataFrame(rows, columns=columns)


def read_shell(
    source: Source,
    *,
    release: str = "0.5.11",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
    kind: str = "bash script",
    text: Text | None = None,
    extra: Iterable[Suspicion] = (),
    reader: str = "bash",
) -> Analysis:
    """Read a shell script without running it.

    ``environment`` and ``arguments`` are those the script is started with; None means unknown, and what
    depends on them is then marked as not certain.
    """
    found = follow(text or source.whole(), state_for(environment, OUTSIDE, arguments), reader)
    more = [*rules_shell.carriage_returns(source.text), *shebang.suspicions(source), *extra]
    return conclude(source, kind, found, options(release), more)


def conclude(
    source: Source,
    kind: str,
    found: Found,
    accepts: Options,
    extra: Iterable[Suspicion] = (),
    shell_rules: bool = True,
) -> Analysis:
    """Apply the rules to what was found and draw the pictures."""
    launches = tuple(_located(server, source) for server in found.servers)
    shield = Shield.of([source.text], [one.launch for one in launches])
    hits = [*extra, *_suspicions(found, accepts, shell_rules)]
    return Analysis(
        source,
        kind,
        launches,
        tuple(_findings(hits, source, shield)),
        tuple(dict.fromkeys(shield.text(n) for n in found.notes)),
        shield,
        found,
    )


def _suspicions(found: Found, accepts: Options, shell_rules: bool) -> Iterator[Suspicion]:
    used = frozenset(name for _, reading in found.readings for name in reading.used)
    if shell_rules:
        for _, reading in found.readings:
            yield from rules_shell.suspicions(reading)
    yield from rules_nested.suspicions(found)
    for server in found.servers:
        yield from rules_words.suspicions(server, accepts, used)
    for invocation, _ in found.others:
        yield from rules_surroundings.overrides(invocation.words)
        if found.servers:
            yield from rules_surroundings.others(
                invocation.name.rpartition("/")[2], invocation.words, accepts
            )


def _findings(hits: Iterable[Suspicion], source: Source, shield: Shield) -> Iterator[Finding]:
    seen: set[tuple[str, int, str]] = set()
    for hit in sorted(hits, key=lambda h: (list(Severity).index(h.severity), h.start)):
        key = (hit.rule, hit.start, hit.what)
        if key in seen:
            continue
        seen.add(key)
        yield Finding(
            hit.rule,
            hit.severity,
            source.place(hit.start),
            shield.text(hit.what),
            shield.text(hit.effect),
            shield.text(hit.mend),
            picture(source, hit.start, hit.end, shield),
            tuple(shield.text(f) for f in hit.flags),
        )


def _located(server: Server, source: Source) -> LocatedLaunch:
    def place(word: FieldText) -> Place | None:
        return source.place(word.value.start) if word.value.start >= 0 else None

    import shlex

    launch = Launch(
        tuple(word.text for word in server.arguments),
        MappingProxyType({name: value.text for name, value in server.env.items()}),
        shlex.join(word.text for word in server.entry),
    )
    return LocatedLaunch(
        launch,
        tuple(place(word) for word in server.arguments),
        {name: place(value) for name, value in server.env.items()},
        server.exact,
        server.reason,
        server.via,
        server,
    )
