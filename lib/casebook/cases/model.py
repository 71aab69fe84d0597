"""A case: a launch, the fault it shows as checkable statements, and the releases it is known from.

The form of the files in ``data/cases/``; ``schema.json`` there is made from these classes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from casebook.resolution.model import Verdict

SCHEMA = 1


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is not a range of releases, as >=0.5.10,<0.5.14 is") from error
    return text


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Releases = Annotated[
    str,
    AfterValidator(_specifier),
    Field(description="A range of releases as PEP 440 writes it; empty means every release."),
]
Value = bool | int | float | str | list[str] | list[int]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ArgumentStatement(_Part):
    """A server argument ends as said. Each key that is given must hold."""

    kind: Literal["argument"]
    argument: Text
    """Field or flag: ``page_size`` or ``--page-size``."""
    ends_as: Value | None = None
    """Its value in effect at the end."""
    ends_unset: bool = False
    """It has no value (Python's None) at the end."""
    ends_unlike: Value | None = None
    """A value that it does not have at the end."""
    verdict: tuple[Verdict, ...] = Field(default=(), min_length=0)
    """One of these is its verdict."""
    decided_in: str = ""
    """Part of the place of its last change: file, line or function."""
    silent: bool = False
    """No log line says so."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        given = (self.ends_as is not None, self.ends_unlike is not None)
        if not any((*given, self.ends_unset, self.verdict, self.decided_in, self.silent)):
            raise ValueError(
                "says nothing of the argument; give ends_as, ends_unset, ends_unlike, verdict, "
                "decided_in or silent"
            )
        return self


class ErrorStatement(_Part):
    """SGLang rejects the launch with an error."""

    kind: Literal["error"]
    begins: Text
    """How its message begins; white space is not compared."""
    type: str = ""
    """The exception's name."""


class RefusedStatement(_Part):
    """argparse refuses the words."""

    kind: Literal["refused"]
    says: Text
    """Part of what it says."""


class StartsStatement(_Part):
    """Every argument resolves: the launch gets past its arguments."""

    kind: Literal["starts"]


class FindingStatement(_Part):
    """Reading the script, the command line or the configuration file gives a finding."""

    kind: Literal["finding"]
    rule: Text
    """The finding's name, as in ``docs/findings``."""


class LogStatement(_Part):
    """SGLang's log says something, or leaves it out."""

    kind: Literal["log"]
    says: Text
    """Part of a log line or warning."""
    absent: bool = False
    """No line says it."""


class VariableStatement(_Part):
    """SGLang reads an environment variable, or does not."""

    kind: Literal["variable"]
    variable: Text
    read: bool


class PlanStatement(_Part):
    """The memory plan of the launch says something."""

    kind: Literal["plan"]
    says: Literal["out of memory"]


Statement = Annotated[
    ArgumentStatement
    | ErrorStatement
    | RefusedStatement
    | StartsStatement
    | FindingStatement
    | LogStatement
    | VariableStatement
    | PlanStatement,
    Field(discriminator="kind"),
]


class CaseLaunch(_Part):
    """What is run: a command, or the text that starts the server."""

    command: Text | None = None
    """The words, as a shell would have them; ``{config}`` is the path of the file that holds ``config``."""
    script: str | None = None
    """The text of a script, manifest or unit that starts the server."""
    file: Text = "launch.sh"
    """The script's file name, which tells its kind."""
    env: dict[str, str] = {}
    """Environment variables that the launch sets."""
    config: str | None = None
    """The text of a configuration file."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.command is None) == (self.script is None):
            raise ValueError("needs a command or a script, one of the two")
        if (self.config is not None) != ("{config}" in (self.command or "")):
            raise ValueError("needs {config} in the command if, and only if, config is given")
        return self


class Case(_Part):
    """One known incident. Its name is its file's."""

    name: str = Field(exclude=True, default="", json_schema_extra={"readOnly": True})
    schema_version: Literal[1] = Field(alias="schema")
    report: str = ""
    """Its number in the collection of reports it came from."""
    title: Text
    source: Text
    """Where it was reported: an address, or in words."""
    reported: Text
    """Release and hardware as the report gives them."""
    expected: Text
    """What the person expected."""
    happened: Text
    """What happened."""
    cause: Text
    mend: Text
    """What to write or do instead."""
    note: str = ""
    """What stands in for what, and what cannot be shown without the GPU."""
    gpu: Text
    """The GPU profile to simulate."""
    model: Text | None = None
    """Model facts to use where the launch's own --model-path is not in the catalog."""
    releases: Releases = ""
    """Where the case can be asked at all."""
    seen_in: Releases
    """Where the fault is known to show."""
    mended_in: Releases | None = None
    """Where it is known not to show; releases in neither are asked without an expectation."""
    mend_rejects: bool = False
    """The mend is that SGLang no longer starts the launch."""
    launch: CaseLaunch
    fault: tuple[Statement, ...] = Field(min_length=1)
    """What holds where the fault shows: all of it."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a case file."""
    found = Case.model_json_schema(by_alias=True)
    del found["properties"]["name"]
    found["properties"]["schema"]["const"] = SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
