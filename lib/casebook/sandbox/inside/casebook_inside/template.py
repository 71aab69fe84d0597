"""SGLang's parser, built once per child and handed to each launch.

SGLang adds some four hundred options to a new parser for every launch, a third of a launch's time. What
it adds is the same each time, as long as the environment variables that it reads meanwhile are: so the
server builds one before it forks, and a fork takes it over if none of them differs.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from casebook_inside import recorder

# What makes a parser this launch's own; everything else is taken from the template.
_OWN = frozenset({"prog", "usage", "description", "epilog", "formatter_class"})


class ParserTemplate:
    """A parser with SGLang's options, and what was recorded while they were added."""

    def __init__(self, add: Any, root: str) -> None:
        self.parser = argparse.ArgumentParser()
        self._added = recorder.Recorder(root)
        recorder.activate(self._added)
        try:
            add(self.parser)
        finally:
            recorder.activate(None)
        self._environment = {
            event["name"]: event["new"] for event in self._added.events if event["kind"] == "env"
        }

    def fits(self, parser: argparse.ArgumentParser) -> bool:
        """Whether ``parser`` is new, and the environment is as it was when the template was made."""
        plain = [action for action in parser._actions if action.dest != "help"]
        same = all(os.environ.get(k) == v for k, v in self._environment.items())
        return same and not plain and type(parser) is argparse.ArgumentParser

    def give(self, parser: argparse.ArgumentParser) -> None:
        """Make ``parser`` what adding the options would have made it, records included."""
        for name, value in vars(self.parser).items():
            if name not in _OWN:
                setattr(parser, name, value)
        recorder.replay(self._added.events)


def install(cls: type, root: str) -> None:
    """Give ``cls.add_cli_args`` (``ServerArgs``) a template. Only where launches run in forks."""
    original: Any = cls.add_cli_args  # type: ignore[attr-defined]
    template = ParserTemplate(original, root)

    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        if template.fits(parser):
            template.give(parser)
        else:
            original(parser)

    cls.add_cli_args = staticmethod(add_cli_args)  # type: ignore[attr-defined]
