"""Word expansion as bash does it, as far as it can be told without running anything.

Order: braces, tilde, parameters, splitting into fields, quote removal. What cannot be told (a
command's output, a variable that comes from outside) is marked, never guessed in silence: the field
is then not ``exact`` and carries the reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from casebook.launch.bash_tree import Unit, end, opens, start, units
from casebook.launch.braces import braces
from casebook.launch.field_text import Empty, FieldText, Lookup, joined
from casebook.launch.source import Text

IFS = " \t\n"

_HOME = "~ is the home directory of whoever runs it"

_NAME = re.compile(r"([A-Za-z_]\w*|[0-9]+|[@*?$!#-])", re.ASCII)


@dataclass
class Expander:
    """Expands words against a table of parameters."""

    lookup: Callable[[str], Lookup]
    assign: Callable[[str, FieldText], None]
    empties: list[Empty]
    substitute: Callable[[Text, Node], FieldText | None] = lambda _text, _node: None
    """Static value of a command substitution, or None."""
    home: str | None = None

    def word(self, text: Text, first: int, last: int, nodes: list[Node]) -> list[FieldText]:
        """All fields of a word."""
        found: list[FieldText] = []
        for word in _at_blanks(units(text, first, last, nodes)):
            fields: list[FieldText] = []
            alternatives = braces(word)
            for alternative in alternatives:
                fields.extend(self._fields(text, self._tilde(alternative)))
            if _overlooked(word) or any(_other_name(a) for a in alternatives):
                fields = [replace(f, exact=False, reason=_MISREAD) for f in fields]
            found.extend(fields)
        return found

    def single(self, text: Text, first: int, last: int, nodes: list[Node]) -> FieldText:
        """A word where bash neither splits nor expands braces: an assignment's value."""
        word = units(text, first, last, nodes)
        parts = self._pieces(text, self._tilde(word, assignment=True))
        whole = joined([piece for group in parts for piece in group.fields])
        return replace(whole, exact=False, reason=_MISREAD) if _overlooked(word) else whole

    def _tilde(self, word: list[Unit], assignment: bool = False) -> list[Unit]:
        out: list[Unit] = []
        for number, unit in enumerate(word):
            at_start = number == 0 or (
                assignment and word[number - 1].char == ":" and not word[number - 1].quoted
            )
            bare = number + 1 == len(word) or (word[number + 1].char in "/:" and not unit.quoted)
            if at_start and bare and unit.char == "~" and not unit.quoted:
                if self.home is None:
                    out.append(replace(unit, quoted=True, tilde=True))
                else:
                    out.extend(Unit(c, unit.at, quoted=True) for c in self.home)
            else:
                out.append(unit)
        return out

    # -- parameters ---------------------------------------------------------------------------

    def _pieces(self, text: Text, word: Sequence[Unit]) -> list[_Piece]:
        pieces: list[_Piece] = []
        run: list[Unit] = []

        def flush() -> None:
            if run:
                value = Text("".join(u.char for u in run), [u.at for u in run if u.char])
                field = FieldText(value, quoted=run[0].quoted)
                pieces.append(_Piece([field], quoted=run[0].quoted, split=False))
                run.clear()

        for unit in word:
            if unit.tilde:
                flush()
                home = FieldText(Text("~", [unit.at]), exact=False, reason=_HOME)
                pieces.append(_Piece([home], quoted=True, split=False))
            elif unit.expansion is None:
                if run and run[0].quoted != unit.quoted:
                    flush()
                run.append(unit)
            else:
                flush()
                pieces.append(self._parameter(text, unit))
        flush()
        return pieces

    def _parameter(self, text: Text, unit: Unit) -> _Piece:
        node = unit.expansion
        assert node is not None
        if node.type == "simple_expansion":
            return self._named(unit, unit.char[1:])
        if node.type == "expansion":
            return self._braced(text, node, unit)
        if node.type == "command_substitution":
            known = self.substitute(text, node)
            if known is not None:
                return _Piece([known], quoted=unit.quoted, split=not unit.quoted)
        what = {
            "command_substitution": "the output of a command",
            "arithmetic_expansion": "arithmetic",
            "process_substitution": "a process substitution",
        }.get(node.type, node.type)
        return self._unknown(unit, f"{what} is known only when it runs")

    def _unknown(self, unit: Unit, reason: str) -> _Piece:
        first = unit.at
        value = Text(
            unit.char,
            range(first, first + len(unit.char)) if first >= 0 else [first] * len(unit.char),
        )
        return _Piece([FieldText(value, exact=False, reason=reason)], quoted=True, split=False)

    def _named(self, unit: Unit, name: str) -> _Piece:
        if not _NAME.fullmatch(name):
            # The grammar closes a quote elsewhere than bash does, and takes a lone `$` for an expansion.
            return self._unknown(unit, f"{unit.char} is not an expansion that bash knows")
        found = self.lookup(name)
        star = name == "*"
        return self._value(found, name, unit, all_fields=name == "@" or star, star=star)

    def _value(
        self, found: Lookup, name: str, unit: Unit, all_fields: bool = False, star: bool = False
    ) -> _Piece:
        fields = list(found.fields or ())
        if found.array and not all_fields:
            fields = fields[:1]
        if not any(f.text for f in fields) and not all_fields:
            self.empties.append(Empty(name, unit.at, found.known and found.certain, unit.quoted))
        if not fields and not all_fields:
            fields = [FieldText(Text("", []))]
        if not found.certain or (not found.known and not any(f.text for f in fields)):
            reason = found.reason or f"${name} is not set in the script"
            fields = [replace(f, exact=False, reason=f.reason or reason) for f in fields]
        fields = [replace(f, variables=(*f.variables, name)) for f in fields]
        if star and unit.quoted:
            fields = [joined(fields, by=" ")]
        return _Piece(
            fields,
            quoted=unit.quoted,
            split=not unit.quoted,
            many=all_fields and not (star and unit.quoted),
        )

    def _braced(self, text: Text, node: Node, unit: Unit) -> _Piece:
        inner = _inside(text, node)[2:-1]
        if match := _NAME.fullmatch(inner):
            return self._named(unit, match[0])
        if match := re.fullmatch(r"([A-Za-z_]\w*)\[([@*]|-?\d+)\]", inner):
            found = self.lookup(match[1])
            if match[2] in "@*":
                return self._value(found, match[1], unit, all_fields=True, star=match[2] == "*")
            index = int(match[2])
            values = found.fields or ()
            inside = -len(values) <= index < len(values)
            one = replace(found, fields=(values[index],) if inside else None, array=False)
            return self._value(one, match[1], unit)
        if match := re.match(r"([A-Za-z_]\w*|[0-9]+|[@*])(\[[@*]\])?(:?[-=+?])", inner):
            return self._default(text, node, unit, match)
        if match := re.fullmatch(r"#([A-Za-z_]\w*)(\[[@*]\])?", inner):
            return self._length(match, unit)
        if match := re.fullmatch(r"([A-Za-z_]\w*)(##?|%%?|//?)([^*?\[\]$`\"'\\{}]*)", inner):
            return self._edit(match, unit)
        return self._unknown(unit, f"the expansion {_inside(text, node)} is left to bash")

    def _length(self, match: re.Match[str], unit: Unit) -> _Piece:
        found = self.lookup(match[1])
        fields = found.fields or ()
        if not found.certain or not (found.known or fields):
            return self._unknown(unit, found.reason or f"${match[1]} is not set in the script")
        count = len(fields) if match[2] else len(fields[0].text) if fields else 0
        value = Text.made(str(count), unit.at)
        return _Piece([FieldText(value)], quoted=unit.quoted, split=not unit.quoted)

    def _edit(self, match: re.Match[str], unit: Unit) -> _Piece:
        """``${X#p}``, ``${X%p}``, ``${X/a/b}`` with patterns that hold no wildcard."""
        name, operator, rest = match.groups()
        found = self.lookup(name)
        if not found.fields or not found.certain or found.array:
            return self._value(found, name, unit)
        field = found.fields[0]
        value = field.value
        if operator[0] == "#":
            hit = rest and value.text.startswith(rest)
            value = value.cut(len(rest), len(value)) if hit else value
        elif operator[0] == "%":
            hit = rest and value.text.endswith(rest)
            value = value.cut(0, len(value) - len(rest)) if hit else value
        else:
            old, _, new = rest.partition("/")
            value = _replace(value, old, new, everywhere=operator == "//")
        return self._value(replace(found, fields=(replace(field, value=value),)), name, unit)

    def _default(self, text: Text, node: Node, unit: Unit, match: re.Match[str]) -> _Piece:
        name, subscript, operator = match.groups()
        found = self.lookup(name)
        fields = found.fields
        everything = bool(subscript) or name in "@*"
        is_set = fields is not None and (not everything or bool(fields))
        if operator[0] == ":":
            is_set = is_set and any(f.text for f in fields or ())
        unknown = not found.certain or (not found.known and not is_set)
        begin = opens(text, node) + 2 + match.end()
        nodes = [c for c in node.children if start(c) >= begin and c.type not in ("}",)]
        kind = operator[-1]
        if kind == "+":
            if is_set:
                piece = self._alternative(text, begin, end(node) - 1, nodes, unit)
            else:
                piece = (
                    _Piece([], quoted=False, split=False)
                    if not unit.quoted
                    else _Piece([FieldText(Text("", []))], quoted=True, split=False)
                )
        elif is_set or kind == "?":
            star = name == "*"
            piece = self._value(found, name, unit, all_fields=everything, star=star)
            unknown = not found.certain
        else:
            piece = self._alternative(text, begin, end(node) - 1, nodes, unit)
            if kind == "=":
                self.assign(name, joined(piece.fields))
        if unknown:
            reason = found.reason or f"${name} may be set outside the script"
            piece = replace(
                piece,
                fields=[replace(f, exact=False, reason=f.reason or reason) for f in piece.fields]
                or [FieldText(Text("", []), exact=False, reason=reason)],
            )
        return piece

    def _alternative(
        self, text: Text, first: int, last: int, nodes: list[Node], unit: Unit
    ) -> _Piece:
        """The word behind ``:-`` and its like."""
        if unit.quoted:  # inside double quotes it is read as one more quoted piece
            raw = text.text[first:last]
            if not re.search(r"[$`\\'\"]", raw):
                value = Text(raw, text.at[first:last])
                return _Piece([FieldText(value, quoted=True)], quoted=True, split=False)
        pieces = self._pieces(text, self._tilde(units(text, first, last, nodes)))
        if unit.quoted:
            whole = joined([f for piece in pieces for f in piece.fields])
            raw = text.text[first:last]
            if "'" in raw or '"' in raw or "\\" in raw:
                whole = replace(whole, exact=False, reason="quotes inside a quoted expansion")
            return _Piece([replace(whole, quoted=True)], quoted=True, split=False)
        if len(pieces) == 1:
            return replace(pieces[0], split=not pieces[0].quoted)
        if all(not p.quoted for p in pieces):
            return _Piece([joined([f for p in pieces for f in p.fields])], quoted=False, split=True)
        whole = joined([f for p in pieces for f in p.fields])
        if any(c in IFS for c in whole.text):
            whole = replace(whole, exact=False, reason="a partly quoted default value")
        return _Piece([replace(whole, quoted=True)], quoted=True, split=False)

    # -- fields -------------------------------------------------------------------------------

    def _fields(self, text: Text, word: list[Unit]) -> list[FieldText]:
        done: list[FieldText] = []
        current: list[FieldText] = []
        open_word = False
        for piece in self._pieces(text, word):
            for number, field in enumerate(piece.fields):
                if piece.many and number and open_word:
                    done.append(joined(current))
                    current.clear()
                    open_word = False
                if piece.split:
                    open_word = self._split(field, current, done, open_word)
                else:
                    current.append(field)
                    open_word = True
        if open_word:
            done.append(joined(current))
        return done

    @staticmethod
    def _split(
        field: FieldText, current: list[FieldText], done: list[FieldText], open_word: bool
    ) -> bool:
        """Split an unquoted expansion's value at blanks; True if a word is open at its end."""
        value = field.value
        begin = 0
        for position in range(len(value) + 1):
            at_end = position == len(value)
            if not at_end and value.text[position] not in IFS:
                continue
            if position > begin:
                current.append(replace(field, value=value.cut(begin, position)))
                open_word = True
            if not at_end and open_word:
                done.append(joined(current))
                current.clear()
                open_word = False
            begin = position + 1
        if not field.text and not field.exact:
            # Nothing as far as is known, but it may be something: the word beside it must say so.
            current.append(field)
        return open_word


@dataclass(frozen=True)
class _Piece:
    """Part of a word after parameter expansion."""

    fields: list[FieldText]
    quoted: bool
    split: bool
    many: bool = False
    """``"$@"`` and ``"${A[@]}"``: each value is a word of its own."""


def _inside(text: Text, node: Node) -> str:
    return text.text[opens(text, node) : end(node)]


def _replace(value: Text, old: str, new: str, everywhere: bool) -> Text:
    parts: list[Text] = []
    position = 0
    while old and (hit := value.text.find(old, position)) >= 0:
        parts += [value.cut(position, hit), Text.made(new, value.at[hit])]
        position = hit + len(old)
        if not everywhere:
            break
    return Text.join([*parts, value.cut(position, len(value))])


_MISREAD = "an expansion here is left to bash"


def _at_blanks(word: list[Unit]) -> list[list[Unit]]:
    """The grammar now and then takes two words for one; an unquoted blank parts them, always."""
    words: list[list[Unit]] = [[]]
    for unit in word:
        if unit.expansion is None and not unit.quoted and unit.char in (" ", "\t", "\n"):
            words.append([])
        else:
            words[-1].append(unit)
    return [w for w in words if w] or [word]


def _other_name(word: list[Unit]) -> bool:
    """``$A{1,2}`` is ``$A1 $A2`` for bash: braces come first, and make other names."""
    return any(
        unit.expansion is not None
        and unit.expansion.type == "simple_expansion"
        and not unit.quoted
        and not unit.char[1:].isdigit()
        and following.expansion is None
        and not following.quoted
        and bool(re.match(r"\w", following.char, re.ASCII))
        for unit, following in itertools.pairwise(word)
    )


def _overlooked(word: list[Unit]) -> bool:
    """Whether an unquoted dollar sign that begins an expansion was taken for a letter."""
    for unit, following in itertools.pairwise(word):
        sign = unit.expansion is None and unit.char in ("$", "`") and not unit.quoted
        begins = following.expansion is None and re.match(r"[\w@*#?({!$-]", following.char or " ")
        if sign and begins:
            return True
    return False
