"""Rules about the words that reach a server: what the parser will make of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from casebook.launch.given import Given, Where, given
from casebook.launch.options import Options
from casebook.launch.rules_surroundings import (
    empty_variables,
    environment,
    in_front,
    not_expanded,
)
from casebook.launch.rules_values import broken_json, eaten_quotes, odd_words
from casebook.launch.suspicion import Suspicion, error, note, warning
from casebook.launch.through import Server

_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "0", "1"})


def suspicions(server: Server, options: Options, used: frozenset[str]) -> Iterator[Suspicion]:
    """All faults in the words and the environment of one server."""
    where = Where(server)
    options_given = given(server.arguments, options)
    eaten = list(eaten_quotes(server, where))
    yield from eaten
    if not eaten:
        yield from broken_json(server, options_given, where)
    yield from odd_words(server, options, where, bool(eaten))
    yield from _duplicates(options_given, where)
    yield from _names(options_given, options, where)
    yield from _switch_values(server, options, where)
    yield from _config_form(options_given, where)
    yield from empty_variables(server, options)
    yield from not_expanded(server, where)
    yield from environment(server, where, used)
    yield from in_front(server, options, where)


def _duplicates(options_given: Sequence[Given], where: Where) -> Iterator[Suspicion]:
    first: dict[str, Given] = {}
    for one in options_given:
        key = one.option.field if one.option else one.name
        if one.option is None and not one.name.startswith("--"):
            continue
        before = first.get(key)
        first[key] = one
        if before is None:
            continue
        old, new = (" ".join(v.text for v in g.values) for g in (before, one))
        if old == new:
            yield note(
                "duplicate-flag",
                where(one.word),
                f"{one.name} is given twice, with the same value",
                "none: the last one counts",
                "remove one of them",
                (one.name,),
            )
            continue
        yield warning(
            "duplicate-flag",
            where(before.word),
            f"{before.name} is given here and again as `{one.name} {new}`".rstrip(),
            f"the last one wins without a word: {new or 'the switch'} is used and {old or 'this one'} is lost",
            "remove one of the two",
            (one.name,),
        )


def _names(options_given: Sequence[Given], options: Options, where: Where) -> Iterator[Suspicion]:
    for one in options_given:
        name = one.name
        if (
            re.search(r"\s", name)
            or not name.startswith("--")
            or not one.word.exact
            or not name.isascii()
        ):
            continue
        if options.get(name):
            continue
        fits = options.completions(name)
        if len(fits) == 1:
            yield warning(
                "abbreviated-flag",
                where(one.word),
                f"{name} is an abbreviation that argparse completes to {fits[0]}",
                "a later release that has a second option of that beginning refuses it as ambiguous, or takes another",
                f"write {fits[0]}",
                (name,),
            )
        elif fits:
            yield error(
                "ambiguous-flag",
                where(one.word),
                f"{name} may stand for {', '.join(fits[:4])}",
                "argparse refuses the launch",
                "write the option in full",
                (name,),
            )
        elif name in options.elsewhere:
            first, last = options.elsewhere[name]
            yield warning(
                "flag-of-another-release",
                where(one.word),
                f"SGLang {options.release} has no {name}; releases {first} to {last} have it",
                f"on {options.release} the parser refuses the launch",
                "ask which release runs (`python -c 'import sglang; print(sglang.__version__)'`)",
                (name,),
            )
        else:
            near = options.near(name)
            yield error(
                "unknown-flag",
                where(one.word),
                f"SGLang {options.release} has no option {name[:60]}",
                "the parser refuses the launch",
                f"write {' or '.join(near)}" if near else "look it up in `--help`",
                (name,),
            )


def _switch_values(server: Server, options: Options, where: Where) -> Iterator[Suspicion]:
    for number, word in enumerate(server.arguments[:-1]):
        option = options.get(word.text)
        value = server.arguments[number + 1]
        if option is None or option.takes != "none" or value.text.lower() not in _BOOLEANS:
            continue
        off = value.text.lower() in ("false", "no", "off", "0")
        yield error(
            "value-after-switch",
            where(value),
            f"{word.text} is a switch and takes no value",
            f"the parser refuses `{value.text}`"
            + (f"; {word.text} cannot be turned off this way" if off else ""),
            f"remove {word.text} and its value" if off else f"remove `{value.text}`",
            (word.text,),
        )
    for word in server.arguments:
        name, equals, behind = word.text.partition("=")
        option = options.get(name)
        if equals and option and option.takes == "none":
            yield error(
                "value-after-switch",
                where(word),
                f"{name} is a switch and takes no value",
                f"the parser refuses `={behind}`",
                f"write {name} alone, or leave it out",
                (name,),
            )


def _config_form(options_given: Sequence[Given], where: Where) -> Iterator[Suspicion]:
    for one in options_given:
        if one.name != "--config":
            continue
        if one.glued:
            yield error(
                "config-equals-form",
                where(one.word),
                "SGLang looks for the word `--config` alone; `--config=FILE` it does not see",
                "the whole file is ignored without a word",
                "write `--config FILE`, as two words",
                ("--config",),
            )
        elif not one.values:
            yield error(
                "config-without-file",
                where(one.word),
                "no file is named behind --config",
                "SGLang stops: no config file specified",
                "name the file",
                ("--config",),
            )
