"""SGLang's own ``--config`` YAML: the words its merger makes of it, and what the merger drops.

The rules are those of ``ConfigArgumentMerger`` (srt/server_args_config_parser.py, the same in 0.5.8.post1
to 0.5.23 but for one repair): each pair becomes ``--key value`` in front of the command line's own words,
``true`` for a switch becomes ``--key``, ``false`` for a switch becomes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from packaging.version import Version

from casebook.errors import LaunchError
from casebook.launch.analysis import Analysis, conclude
from casebook.launch.field_text import FieldText
from casebook.launch.invocation import Invocation
from casebook.launch.options import Options, options
from casebook.launch.source import Source, Text
from casebook.launch.suspicion import Suspicion, error, warning
from casebook.launch.through import Found, Server, Stage
from casebook.launch.yaml_text import Item, documents

ALIAS_REPAIRED = Version("0.5.23")


def read_config(source: Source, release: str = "0.5.11") -> Analysis:
    """The launch that a configuration file gives alone. Raises LaunchError if it is no mapping."""
    accepts = options(release)
    found = documents(source)
    if len(found) != 1 or found[0].kind != "map":
        raise LaunchError(f"{source.name} must hold one mapping of options to values.")
    words = list(words_of(found[0], accepts))
    text = Text.join([w.value for w in words], " ")
    start = found[0].start
    invocation = Invocation(tuple(words), {}, {}, {}, start, start + 1)
    entry = tuple(FieldText(Text.made(w)) for w in ("python", "-m", "sglang.launch_server"))
    server = Server(
        tuple(words),
        entry,
        {},
        {},
        invocation,
        invocation,
        (Stage("SGLang's --config", text),),
        ("--config",),
    )
    return conclude(
        source,
        "SGLang --config file",
        Found(servers=[server]),
        accepts,
        suspicions(found[0], accepts),
    )


def words_of(document: Item, accepts: Options) -> Iterator[FieldText]:
    """The arguments that SGLang's merger makes of a mapping; of a key given twice the last."""
    last = {key.text.text: (key, value) for key, value in document.pairs}
    for key, value in last.values():
        name = FieldText(Text("--", [key.start, key.start]) + key.text)
        meant = _meaning(value)
        if value.kind == "list":
            if value.items:
                yield name
                yield from (FieldText(_scalar(i)) for i in value.items)
        elif isinstance(meant, bool):
            if _is_switch(key.text.text, accepts):
                if meant:
                    yield name
            else:
                yield name
                yield FieldText(Text.made(str(meant).lower(), value.start))
        elif value.kind == "map":
            yield name
            yield FieldText(
                Text.made("{...}", value.start),
                exact=False,
                reason="a mapping becomes Python's text of it",
            )
        else:
            yield name
            yield FieldText(_scalar(value))


def _scalar(item: Item) -> Text:
    """Python's text of a value, at the value's place."""
    text = str(_meaning(item))
    return item.text if text == item.text.text else Text.made(text, item.start)


def _meaning(item: Item) -> object:
    """A scalar as SGLang's YAML reader takes it: version 1.1, where ``yes`` is true and ``010`` is eight."""
    if item.kind != "scalar" or item.style:
        return item.value
    try:
        return yaml.safe_load(item.text.text)
    except (yaml.YAMLError, ValueError):
        return item.value


def _is_switch(key: str, accepts: Options) -> bool:
    """Whether the merger takes a key for a switch: it looks for its argument's name, not for an option."""
    argument = key.replace("-", "_")
    return any(o.takes == "none" and o.field == argument for o in accepts.by_name.values())


def suspicions(document: Item, accepts: Options) -> Iterator[Suspicion]:
    """What the merger will drop or make unparsable."""
    seen: dict[str, Item] = {}
    for key, value in document.pairs:
        name = key.text.text
        at = (key.start, key.end)
        dashed = name.replace("_", "-")
        option = accepts.get("--" + dashed)
        if name in seen:
            yield warning(
                "config-duplicate-key",
                (seen[name].start, seen[name].end),
                f"the key {name} stands here and again further down",
                "YAML keeps the last one without a word; this value is lost",
                "remove one of the two",
                (f"--{dashed}",),
            )
        seen[name] = key
        if "_" in name and option is not None:
            yield error(
                "config-underscore-key",
                at,
                f"the key {name} is written with underscores",
                f"SGLang makes `--{name}` of it, an option that does not exist; the parser refuses the launch",
                f"write {dashed}",
                (f"--{dashed}",),
            )
        elif option is None and not accepts.completions("--" + dashed):
            near = accepts.near("--" + dashed)
            yield error(
                "config-unknown-key",
                at,
                f"SGLang {accepts.release} has no option --{name}",
                "the parser refuses the launch",
                f"write {near[0][2:]}" if near else "look it up in `--help`",
                (f"--{dashed}",),
            )
        if value.kind == "scalar" and _meaning(value) is None:
            yield error(
                "config-null",
                (value.start, max(value.end, value.start + 1)),
                f"{name} is null",
                f"SGLang passes `--{name} None`: the parser refuses it, or takes the text None",
                "leave the key out",
                (f"--{dashed}",),
            )
        if option is not None and option.takes == "none" and _meaning(value) is False:
            yield error(
                "config-false-dropped",
                (value.start, value.end),
                f"{name}: false is dropped",
                "the option is a switch: `false` becomes nothing, and the default (or what SGLang decides) stays",
                "remove the line; to force the opposite use the option for it, if there is one",
                (f"--{dashed}",),
            )
        if f"--no-{dashed}" in accepts.by_name:
            yield error(
                "config-option-pair",
                at,
                f"--{dashed} has an opposite, --no-{dashed}; the merger knows no such pairs",
                "SGLang stops with `Unsupported config option`",
                f"give --{dashed} or --no-{dashed} on the command line",
                (f"--{dashed}",),
            )
        if option is not None and _shadowed(option.field, name, accepts):
            yield error(
                "config-alias-key",
                at,
                f"two options of SGLang {accepts.release} set {option.field}, one of them deprecated",
                "the merger takes the key for the deprecated one and stops with `Unsupported config option`",
                f"give --{dashed} on the command line (repaired in {ALIAS_REPAIRED})",
                (f"--{dashed}",),
            )


def _shadowed(field: str, key: str, accepts: Options) -> bool:
    if Version(accepts.release) >= ALIAS_REPAIRED or key.replace("-", "_") != field:
        return False
    return any(o.alias for o in accepts.by_name.values() if o.field == field)
