"""What a shell holds while a script is read: variables, functions, positional parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from casebook.launch.field_text import FieldText, Lookup
from casebook.launch.source import Text


@dataclass(frozen=True)
class Variable:
    """A shell variable: its value or values, and whether programs get it."""

    fields: tuple[FieldText, ...]
    exported: bool = False
    array: bool = False
    certain: bool = True
    reason: str = ""
    local: bool = False


@dataclass
class State:
    """One shell's memory. ``fork`` gives a subshell its own copy."""

    variables: dict[str, Variable | None] = field(default_factory=dict)
    """None: unset by the script itself."""
    functions: dict[str, Any] = field(default_factory=dict)
    positional: tuple[FieldText, ...] = ()
    positional_known: bool = True
    outside: str = ""
    """Why unset variables may have a value all the same; empty if the environment is known."""
    export_all: bool = False
    name: str = "bash"
    cloudy: str = ""
    """Why what happens now may not happen (inside an ``if``, a loop, behind ``&&``)."""
    inherited: frozenset[str] = frozenset()

    def fork(self) -> State:
        """A copy that can be changed without changing this one."""
        other = copy.copy(self)
        other.variables = dict(self.variables)
        other.functions = dict(self.functions)
        return other

    def lookup(self, name: str) -> Lookup:
        """What ``$name`` stands for here."""
        if name in ("@", "*"):
            return Lookup(self.positional, self.positional_known, _ARGUMENTS, self.positional_known)
        if name == "#":
            count = FieldText(Text.made(str(len(self.positional))))
            return Lookup((count,), self.positional_known, _ARGUMENTS)
        if name.isdecimal() and name.isascii() and int(name) > 0:
            place = int(name) - 1
            inside = place < len(self.positional)
            fields = (self.positional[place],) if inside else None
            return Lookup(fields, self.positional_known, _ARGUMENTS, self.positional_known)
        if name.isdecimal() and name.isascii():
            return Lookup((FieldText(Text.made(self.name)),), False, "$0 is the script's own name")
        if not name.isidentifier():
            return Lookup((FieldText(Text.made("")),), False, f"${name} is known only when it runs")
        if name in self.variables:
            found = self.variables[name]
            if found is None:
                return Lookup(None)
            return Lookup(found.fields, found.certain, found.reason, array=found.array)
        if name in _DYNAMIC:
            return Lookup(None, False, f"${name} is known only when it runs", known=False)
        return Lookup(
            None,
            True,
            f"${name} is not set in the script" if self.outside else "",
            not self.outside,
        )

    def assign(
        self,
        name: str,
        fields: Sequence[FieldText],
        *,
        array: bool = False,
        append: bool = False,
        export: bool | None = None,
        local: bool = False,
    ) -> None:
        """``name=value`` as it takes effect now."""
        old = self.variables.get(name)
        values = tuple(fields)
        certain, reason = not self.cloudy, self.cloudy
        if append and old is not None:
            if array or old.array:
                values = (*old.fields, *values)
                array = True
            elif old.fields and values:
                value = old.fields[0].value + values[0].value
                exact = old.fields[0].exact and values[0].exact
                values = (replace(values[0], value=value, exact=exact),)
            certain = certain and old.certain
            reason = reason or old.reason
        elif append and name not in self.variables and self.outside:
            certain, reason = False, f"${name} may be set outside the script"
        was = bool(old and old.exported) or (old is None and name in self.inherited)
        self.variables[name] = Variable(
            values,
            exported=(was or self.export_all) if export is None else export,
            array=array,
            certain=certain,
            reason=reason,
            local=local,
        )

    def mark_exported(self, name: str, exported: bool = True) -> None:
        """``export name``."""
        if found := self.variables.get(name):
            self.variables[name] = replace(found, exported=exported)

    def unset(self, name: str) -> None:
        """``unset name``."""
        if self.cloudy and name in self.variables:
            self.blur([name], self.cloudy)
        else:
            self.variables[name] = None

    def blur(self, names: Sequence[str], reason: str) -> None:
        """From here on the values of ``names`` are not certain."""
        for name in names:
            found = self.variables.get(name)
            if found is not None:
                self.variables[name] = replace(found, certain=False, reason=reason)
            else:
                self.variables[name] = Variable(
                    (FieldText(Text("", [])),), certain=False, reason=reason
                )

    def merge(self, branches: Sequence[State], reason: str) -> None:
        """After alternatives: what they agree on holds, the rest is uncertain."""
        names = {n for b in branches for n in b.variables}
        for name in sorted(names):
            values = [b.variables.get(name, _MISSING) for b in branches]
            if all(v == values[0] for v in values):
                if values[0] is not _MISSING:
                    self.variables[name] = values[0]  # type: ignore[assignment]
                continue
            known = [v for v in values if isinstance(v, Variable)]
            best = known[0] if known else Variable((FieldText(Text("", [])),))
            self.variables[name] = replace(best, certain=False, reason=reason)
        for branch in branches:
            self.functions.update(branch.functions)

    def environment(self) -> dict[str, FieldText]:
        """The variables a program would get from the script."""
        return {
            name: found.fields[0]
            if found.certain
            else replace(found.fields[0], exact=False, reason=found.reason)
            for name, found in self.variables.items()
            if found is not None and found.exported and found.fields and not found.array
        }


_MISSING = object()
_ARGUMENTS = "it depends on the arguments the script is called with"
_DYNAMIC = frozenset(
    [
        "RANDOM",
        "SECONDS",
        "LINENO",
        "BASHPID",
        "PPID",
        "UID",
        "EUID",
        "HOSTNAME",
        "PWD",
        "OLDPWD",
        "BASH_SOURCE",
        "FUNCNAME",
        "EPOCHSECONDS",
        "SRANDOM",
        "HOSTTYPE",
        "OSTYPE",
        "BASH_VERSION",
        "REPLY",
        "IFS",
        "OPTIND",
        "OPTARG",
    ]
)


def state_for(
    environment: Mapping[str, str] | None, outside: str, arguments: Sequence[str] | None
) -> State:
    """A fresh shell. ``environment`` None means that it is not known."""
    state = State(outside=outside if environment is None else "")
    for name, value in (environment or {}).items():
        state.variables[name] = Variable((FieldText(Text.made(value)),), exported=True)
    state.positional = tuple(FieldText(Text.made(a)) for a in arguments or ())
    state.positional_known = arguments is not None
    return state
