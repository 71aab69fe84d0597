"""Read a bash script from top to bottom and list the commands it would run, with their exact words.

Nothing is executed. Where the script's course depends on the world (a test on a file, a command's
status) both ways are read and what they assign is held to be uncertain from there on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from casebook.launch import conditions
from casebook.launch.bash_tree import EXPANSIONS, end, errors, opens, parse, start, units
from casebook.launch.expand import Empty, Expander, FieldText, joined
from casebook.launch.shell_state import State
from casebook.launch.source import NOWHERE, Text
from casebook.launch.word_groups import word_groups

MAX_STEPS = 50_000
MAX_DEPTH = 25
MAX_ROUNDS = 256
BUILTINS = frozenset(
    [
        ".",
        ":",
        "[",
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "cd",
        "command",
        "compgen",
        "complete",
        "compopt",
        "continue",
        "declare",
        "dirs",
        "disown",
        "echo",
        "enable",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "getopts",
        "hash",
        "help",
        "history",
        "jobs",
        "kill",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "printf",
        "pushd",
        "pwd",
        "read",
        "readarray",
        "readonly",
        "return",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
        "[[",
    ]
)


@dataclass(frozen=True)
class Redirect:
    """``> file`` and its like."""

    operator: str
    target: FieldText | None
    at: int


@dataclass(frozen=True)
class Invocation:
    """One command as the shell would start it."""

    words: tuple[FieldText, ...]
    env: Mapping[str, FieldText]
    """Exported variables and those set in front of the command."""
    prefix: Mapping[str, FieldText]
    """Only those set in front of it."""
    unexported: Mapping[str, FieldText]
    """Variables the script has set that the command does not get."""
    start: int
    end: int
    """Root offsets of the command."""
    stdin: FieldText | None = None
    redirects: tuple[Redirect, ...] = ()
    cloudy: str = ""
    """Why it may not run."""
    empties: tuple[Empty, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """The command's first word."""
        return self.words[0].text if self.words else ""

    @property
    def exact(self) -> bool:
        """Whether the words are what bash passes, whatever the surroundings."""
        return all(w.exact for w in self.words) and all(e.known for e in self.empties)

    @property
    def reason(self) -> str:
        """Why it is not exact."""
        for word in self.words:
            if not word.exact:
                return word.reason
        unknown = [e.name for e in self.empties if not e.known]
        return f"${unknown[0]} is not set in the script" if unknown else ""


@dataclass
class Reading:
    """What walking a script found."""

    text: Text
    root: Node
    invocations: list[Invocation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    state: State = field(default_factory=State)
    broken: list[int] = field(default_factory=list)
    """Root offsets of places the grammar does not understand."""
    used: set[str] = field(default_factory=set)
    """Variables that the script reads."""
    written: dict[str, FieldText] = field(default_factory=dict)
    """Files that the script writes from a here-document."""

    @property
    def exact(self) -> bool:
        """Whether every command's words are certain."""
        return (
            not self.broken
            and not self.notes
            and all(i.exact and not i.cloudy for i in self.invocations)
        )


class _StopError(Exception):
    """``exit`` or ``return`` was reached, or a limit."""


def walk(text: Text, state: State) -> Reading:
    """Read a script's text with a shell in ``state``."""
    root = parse(text.text)
    reading = Reading(text, root, state=state)
    reading.broken = [
        text.at[min(start(e), len(text) - 1)] if len(text) else NOWHERE
        for e in errors(root, text.text)
    ]
    walker = _Walker(reading)
    try:
        walker.block(text, root.children, state, 0)
    except _StopError:
        pass
    except RecursionError:
        reading.notes.append("The script is nested too deeply to be read without running it.")
    return reading


class _Walker:
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.steps = 0

    # -- statements ---------------------------------------------------------------------------

    def block(self, text: Text, nodes: Iterable[Node], state: State, depth: int) -> None:
        for node in nodes:
            self.statement(text, node, state, depth)

    def statement(
        self, text: Text, node: Node, state: State, depth: int, stdin: FieldText | None = None
    ) -> FieldText | None:
        """Read one statement; returns what it would print, where that is known."""
        self.steps += 1
        if self.steps > MAX_STEPS or depth > MAX_DEPTH:
            note = "The script runs too long or too deep to be read to its end without running it."
            if note not in self.reading.notes:
                self.reading.notes.append(note)
            raise _StopError
        kind = node.type
        if kind == "command":
            return self.command(text, node, state, depth, (), stdin, ())
        if kind == "redirected_statement":
            return self.redirected(text, node, state, depth, stdin)
        if kind in ("variable_assignment", "variable_assignments"):
            for child in [node] if kind == "variable_assignment" else node.children:
                self.assignment(text, child, state)
        elif kind in ("declaration_command", "unset_command"):
            self.declaration(text, node, state)
        elif kind == "pipeline":
            flow = stdin
            for child in [c for c in node.named_children if c.type != "comment"]:
                flow = self.statement(text, child, state.fork(), depth, flow)
        elif kind == "list":
            self.and_or(text, node, state, depth)
        elif kind in ("subshell",):
            inner = state.fork()
            try:
                self.block(text, node.named_children, inner, depth)
            except _StopError:
                self._limits()
        elif kind in ("compound_statement", "do_group") or kind == "negated_command":
            self.block(text, node.named_children, state, depth)
        elif kind == "if_statement":
            self.branches(text, node, state, depth)
        elif kind in ("while_statement", "c_style_for_statement"):
            self.repeated(text, node, state, depth)
        elif kind == "for_statement":
            self.each(text, node, state, depth)
        elif kind == "case_statement":
            self.case(text, node, state, depth)
        elif kind == "function_definition":
            name = node.child_by_field_name("name")
            body = node.child_by_field_name("body")
            if name is not None and body is not None:
                state.functions[_source(text, name)] = (text, body)
        elif kind == "ERROR":
            self.block(text, [c for c in node.named_children if c.type != "comment"], state, depth)
        return None

    def _limits(self) -> None:
        if self.steps > MAX_STEPS:
            raise _StopError

    def and_or(self, text: Text, node: Node, state: State, depth: int) -> None:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((c.type for c in node.children if c.type in ("&&", "||")), "&&")
        status = self.status(text, left, state)
        self.statement(text, left, state, depth)
        if status is (operator == "||"):
            return
        if status is None and (operator == "||" or _is_test(left)):
            branch = state.fork()
            branch.cloudy = branch.cloudy or "it stands behind a condition"
            before = state.fork()
            try:
                self.statement(text, right, branch, depth)
            except _StopError:
                self._limits()
            state.merge([branch, before], "it is set behind a condition")
            return
        self.statement(text, right, state, depth)

    def status(self, text: Text, node: Node, state: State) -> bool | None:
        """Whether a condition holds, where that can be told."""
        if node.type == "negated_command" and node.named_children:
            inner = self.status(text, node.named_children[-1], state)
            return None if inner is None else not inner
        if node.type == "list":
            left = self.status(text, node.named_children[0], state)
            right = self.status(text, node.named_children[-1], state)
            both = any(c.type == "&&" for c in node.children)
            if both:
                return False if left is False else right if left is True else None
            return True if left is True else right if left is False else None
        source = _source(text, node)
        if source in ("true", ":"):
            return True
        if source == "false":
            return False
        if _is_test(node):
            expander = self.expander(state)
            fields = conditions.words_of(text, node, expander)
            if fields is None or any(not e.known for e in expander.empties):
                return None
            return conditions.holds(fields, double=source.startswith("[["))
        return None

    def branches(self, text: Text, node: Node, state: State, depth: int) -> None:
        arms: list[tuple[list[Node], list[Node]]] = []
        condition: list[Node] = []
        body: list[Node] = []
        seen_then = False
        tail: list[Node] | None = None
        for child in node.children:
            if child.type == "then":
                seen_then = True
            elif child.type == "elif_clause":
                split = next((i for i, c in enumerate(child.children) if c.type == "then"), 0)
                arms.append((_named(child.children[:split]), _named(child.children[split:])))
            elif child.type == "else_clause":
                tail = _named(child.children)
            elif child.is_named:
                (body if seen_then else condition).append(child)
        arms.insert(0, (condition, body))
        ends: list[State] = []
        for tests, inner in arms:
            status = self.status(text, tests[-1], state) if tests else None
            self.block(text, tests, state, depth)
            if status is False:
                continue
            if status is True and not ends:
                self.block(text, inner, state, depth)
                return
            ends.append(self._branch(text, inner, state, depth))
            if status is True:
                break
        else:
            if tail is not None and not ends:
                self.block(text, tail, state, depth)
                return
            ends.append(self._branch(text, tail or [], state, depth))
        state.merge(ends, "it depends on a condition")

    def _branch(self, text: Text, nodes: list[Node], state: State, depth: int) -> State:
        branch = state.fork()
        before = branch.cloudy
        branch.cloudy = before or "it stands under a condition"
        try:
            self.block(text, nodes, branch, depth)
        except _StopError:
            self._limits()
        branch.cloudy = before
        return branch

    def repeated(self, text: Text, node: Node, state: State, depth: int) -> None:
        before = state.fork()
        body = [c for c in node.named_children if c.type == "do_group"]
        others = [c for c in node.named_children if c.type not in ("do_group", "comment")]
        if node.type == "while_statement":
            self.block(text, others, state, depth)
        else:
            for other in others:
                state.blur(re.findall(r"[A-Za-z_]\w*", _source(text, other)), "a loop counts it")
        state.merge([self._branch(text, body, state, depth), before], "a loop sets it")

    def each(self, text: Text, node: Node, state: State, depth: int) -> None:
        variable = node.child_by_field_name("variable")
        body = [
            c for c in node.named_children if c.type == "do_group" or c.type == "compound_statement"
        ]
        first = next((i for i, c in enumerate(node.children) if c.type == "in"), None)
        last = next(
            (
                i
                for i, c in enumerate(node.children)
                if c.type in ("do_group", ";", "compound_statement", "\n") and i > (first or 0)
            ),
            len(node.children),
        )
        if variable is None:
            return
        if first is None:
            fields = list(state.positional)
            known = state.positional_known
        else:
            expander = self.expander(state)
            listed = node.children[first + 1 : last]
            behind = start(node.children[last]) if last < len(node.children) else end(node)
            fields = self.words(text, listed, expander, end(node.children[first]), behind)
            known = all(f.exact for f in fields) and all(e.known for e in expander.empties)
        name = _source(text, variable)
        if known and len(fields) <= MAX_ROUNDS:
            for value in fields:
                state.assign(name, [value])
                self.block(text, body, state, depth)
            return
        state.assign(name, fields[:1] or [FieldText(Text("", []))])
        state.blur([name], "a loop sets it")
        before = state.fork()
        state.merge([self._branch(text, body, state, depth), before], "a loop sets it")

    def case(self, text: Text, node: Node, state: State, depth: int) -> None:
        ends = [state.fork()]
        for item in node.named_children:
            if item.type == "case_item":
                behind = next((i for i, c in enumerate(item.children) if c.type == ")"), 0)
                ends.append(self._branch(text, _named(item.children[behind + 1 :]), state, depth))
        state.merge(ends, "it depends on a case")

    # -- assignments --------------------------------------------------------------------------

    def expander(self, state: State) -> Expander:
        def lookup(name: str):  # type: ignore[no-untyped-def]
            self.reading.used.add(name)
            return state.lookup(name)

        home = state.lookup("HOME")
        return Expander(
            lookup,
            lambda name, value: state.assign(name, [value]),
            [],
            lambda text, node: self.substitution(text, node, state),
            home=home.fields[0].text if home.fields and home.certain else None,
        )

    def substitution(self, text: Text, node: Node, state: State) -> FieldText | None:
        """What ``$(...)`` gives, where it is only ``cat`` of a here-document, ``echo`` or ``printf``."""
        inner = [c for c in node.named_children if c.type != "comment"]
        if len(inner) != 1:
            return None
        mark = len(self.reading.invocations)
        printed = self.statement(text, inner[0], state.fork(), 0)
        del self.reading.invocations[mark:]
        if printed is None or not printed.exact:
            return None
        value = printed.value
        return replace(printed, value=value.cut(0, len(value.text.rstrip("\n"))), quoted=True)

    def assignment(
        self,
        text: Text,
        node: Node,
        state: State,
        *,
        export: bool | None = None,
        local: bool = False,
    ) -> str | None:
        if node.type != "variable_assignment":
            return None
        name_node = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if name_node is None:
            return None
        name = _source(text, name_node)
        append = any(c.type == "+=" for c in node.children)
        if name_node.type == "subscript":
            state.blur([name.partition("[")[0]], "an element of it is set")
            return name.partition("[")[0]
        if value is not None and value.type == "array":
            expander = self.expander(state)
            opening, *inner, closing = value.children
            fields = self.words(text, inner, expander, end(opening), start(closing))
            state.assign(name, fields, array=True, append=append, export=export, local=local)
            return name
        state.assign(
            name, [self.value(text, node, value, state)], append=append, export=export, local=local
        )
        return name

    def value(self, text: Text, node: Node, value: Node | None, state: State) -> FieldText:
        if value is None:
            return FieldText(Text("", []))
        nodes = [c for c in node.children if start(c) >= start(value)]
        expander = self.expander(state)
        found = expander.single(text, start(value), end(node), nodes)
        unknown = [e for e in expander.empties if not e.known]
        if unknown and found.exact:
            return replace(
                found, exact=False, reason=f"${unknown[0].name} is not set in the script"
            )
        return found

    def declaration(self, text: Text, node: Node, state: State) -> None:
        keyword = node.children[0].type
        options = [_source(text, c) for c in node.named_children if c.type == "word"]
        if keyword == "unset" or keyword == "unsetenv":
            for child in node.named_children:
                if child.type == "variable_name":
                    state.unset(_source(text, child))
                elif child.type == "word" and not _source(text, child).startswith("-"):
                    state.functions.pop(_source(text, child), None)
            return
        flags = "".join(o[1:] for o in options if o.startswith("-"))
        export = True if keyword == "export" or "x" in flags else None
        if keyword == "export" and "n" in flags:
            export = False
        local = keyword == "local"
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assignment(text, child, state, export=export, local=local)
            elif child.type == "variable_name" and export is not None:
                state.mark_exported(_source(text, child), export)
                if _source(text, child) not in state.variables and state.outside:
                    state.inherited |= {_source(text, child)}
            elif child.type not in ("word", "comment", "number") and not child.type.startswith("-"):
                fields = self.words(text, [child], self.expander(state))
                for one in fields:
                    self._declare_text(one, state, export)

    @staticmethod
    def _declare_text(one: FieldText, state: State, export: bool | None) -> None:
        name, equals, _ = one.text.partition("=")
        if equals and name.isidentifier():
            value = replace(one, value=one.value.cut(len(name) + 1, len(one.value)))
            state.assign(name, [value], export=export)
        elif export is not None:
            state.mark_exported(one.text, export)

    # -- commands -----------------------------------------------------------------------------

    def words(
        self,
        text: Text,
        nodes: Sequence[Node],
        expander: Expander,
        after: int | None = None,
        until: int | None = None,
    ) -> list[FieldText]:
        """The fields of the words that lie from ``after`` to ``until`` and are made of ``nodes``."""
        found: list[FieldText] = []
        for group in word_groups(text, nodes, after, until):
            found.extend(expander.word(text, group.first, group.last, group.nodes))
        return found

    def redirected(
        self, text: Text, node: Node, state: State, depth: int, stdin: FieldText | None
    ) -> FieldText | None:
        body = node.child_by_field_name("body")
        redirects: list[Redirect] = []
        extra: list[Node] = []
        followers: list[Node] = []
        expander = self.expander(state)
        for child in node.children:
            if child.type == "file_redirect":
                self._file_redirect(text, child, expander, redirects, extra)
            elif child.type == "heredoc_redirect":
                stdin = self.heredoc(text, child, expander)
                for part in child.named_children:
                    if part.type == "file_redirect":
                        self._file_redirect(text, part, expander, redirects, extra)
                    elif part.type in ("pipeline", "list", "command", "redirected_statement"):
                        followers.append(part)
                    elif part.type not in (
                        "heredoc_start",
                        "heredoc_body",
                        "heredoc_end",
                        "file_descriptor",
                        "comment",
                        "herestring_redirect",
                    ):
                        extra.append(part)
            elif child.type == "herestring_redirect":
                parts = [c for c in child.named_children if c.type != "file_descriptor"]
                found = joined(self.words(text, parts, expander)) if parts else None
                if found is not None:
                    stdin = replace(found, value=found.value + Text.made("\n"))
        self._here = tuple(expander.empties)
        printed: FieldText | None = None
        if body is not None and body.type == "command":
            printed = self.command(text, body, state, depth, redirects, stdin, extra)
        elif body is not None:
            printed = self.statement(text, body, state, depth, stdin)
        elif extra:
            self._run(
                text, extra, {}, state, depth, tuple(redirects), stdin, start(node), end(node)
            )
        for follower in followers:
            children = follower.named_children if follower.type == "pipeline" else [follower]
            flow = printed
            for one in children:
                flow = self.statement(text, one, state.fork(), depth, flow)
        return None if any(r.operator in (">", ">>", "&>") for r in redirects) else printed

    def _file_redirect(
        self,
        text: Text,
        node: Node,
        expander: Expander,
        redirects: list[Redirect],
        extra: list[Node],
    ) -> None:
        operator = next((c.type for c in node.children if not c.is_named), ">")
        targets = [c for c in node.named_children if c.type != "file_descriptor"]
        groups = word_groups(text, targets)
        fields = self.words(text, groups[0].nodes, expander) if groups else []
        redirects.append(Redirect(operator, fields[0] if fields else None, text.place(start(node))))
        # The grammar hands later words to the redirection; bash gives them to the command.
        for group in groups[1:]:
            extra.extend(group.nodes)

    def heredoc(self, text: Text, node: Node, expander: Expander) -> FieldText | None:
        """The here-document's text as the command gets it."""
        opening = next((c for c in node.children if c.type == "heredoc_start"), None)
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        if opening is None:
            return None
        if body is None:
            return FieldText(Text("", []))
        first = text.text.find("\n", end(opening)) + 1
        first = min(first, start(body)) if first else start(body)
        closing = next((c for c in node.children if c.type == "heredoc_end"), None)
        last = start(closing) if closing is not None else end(body)
        last = text.text.rfind("\n", first, last) + 1 or last if closing is not None else last
        raw = any(c in _source(text, opening) for c in "'\"\\")
        strip = any(c.type == "<<-" for c in node.children)
        if raw:
            found = FieldText(text.cut(first, last), quoted=True)
        else:
            found = self._expanded_heredoc(text, first, last, body, expander)
        return replace(found, value=_without_tabs(found.value)) if strip else found

    @staticmethod
    def _expanded_heredoc(
        text: Text, first: int, last: int, body: Node, expander: Expander
    ) -> FieldText:
        # The grammar loses expansions behind a backslash in a here-document. Read as one double-quoted
        # word, with the quotes in it made plain letters, it does not.
        del body
        raw = text.text[first:last]
        shell = parse(': "' + raw.replace('"', "\ue00e") + '"')
        text = Text(': "' + raw + '"', [NOWHERE] * 3 + list(text.at[first:last]) + [NOWHERE])
        first, last = 3, 3 + len(raw)
        nodes = _expansions(shell)
        pieces: list[FieldText] = []
        position = first
        for node in [*nodes, None]:
            stop = last if node is None else opens(text, node)
            chars, at = [], []
            while position < stop:
                if text.text[position] == "\\" and text.text[position + 1 : position + 2] in tuple(
                    "$`\\\n"
                ):
                    if text.text[position + 1] != "\n":
                        chars.append(text.text[position + 1])
                        at.append(text.at[position + 1])
                    position += 2
                    continue
                chars.append(text.text[position])
                at.append(text.at[position])
                position += 1
            pieces.append(FieldText(Text("".join(chars), at)))
            if node is not None:
                found = expander.single(text, opens(text, node), end(node), [node])
                pieces.append(found)
                position = end(node)
        return replace(joined(pieces), quoted=True)

    def command(
        self,
        text: Text,
        node: Node,
        state: State,
        depth: int,
        redirects: Sequence[Redirect],
        stdin: FieldText | None,
        extra: Sequence[Node],
    ) -> FieldText | None:
        prefix: dict[str, FieldText] = {}
        nodes: list[Node] = []
        redirects = list(redirects)
        later: list[Node] = []
        for child in node.children:
            if child.type == "variable_assignment" and not nodes:
                name = child.child_by_field_name("name")
                if name is not None:
                    value = child.child_by_field_name("value")
                    prefix[_source(text, name)] = self.value(text, child, value, state)
            elif child.type == "file_redirect":
                self._file_redirect(text, child, self.expander(state), redirects, later)
            elif child.type == "herestring_redirect":
                found = self.words(text, child.named_children, self.expander(state))
                if found:
                    stdin = replace(found[0], value=found[0].value + Text.made("\n"))
            elif child.type == "command_name" or child.type not in ("comment",):
                nodes.append(child)
        return self._run(
            text,
            [*nodes, *later, *extra],
            prefix,
            state,
            depth,
            tuple(redirects),
            stdin,
            start(node),
            end(node),
        )

    def _run(
        self,
        text: Text,
        nodes: Sequence[Node],
        prefix: dict[str, FieldText],
        state: State,
        depth: int,
        redirects: tuple[Redirect, ...],
        stdin: FieldText | None,
        first: int,
        last: int,
    ) -> FieldText | None:
        expander = self.expander(state)
        line = text.text.find("\n", end(nodes[-1])) if nodes else -1
        words = self.words(text, nodes, expander, until=line if line >= 0 else len(text))
        if not words:
            for name, value in prefix.items():
                state.assign(name, [value])
            return None
        invocation = Invocation(
            tuple(words),
            {**state.environment(), **prefix},
            prefix,
            {
                n: v.fields[0]
                for n, v in state.variables.items()
                if v is not None and not v.exported and v.fields and n not in prefix
            },
            text.place(first),
            text.place(last - 1) + 1,
            stdin,
            redirects,
            state.cloudy,
            (*expander.empties, *self._here),
            tuple((text.place(start(n)), text.place(end(n) - 1) + 1) for n in nodes),
        )
        self._here = ()
        name = words[0].text
        if name in state.functions and words[0].exact:
            self.call(name, words[1:], state, depth)
            return None
        if name == "eval":
            self.evaluate(words[1:], state, depth)
            return None
        if name in BUILTINS and name not in ("exec", "command", "."):
            return self.builtin(name, words, state)
        self.reading.invocations.append(invocation)
        if name == ".":
            self._sourced(words, state)
        target = next(
            (r.target for r in redirects if r.operator in (">", ">|", "&>") and r.target), None
        )
        if name in ("cat", "tee") and stdin is not None:
            if name == "tee" and len(words) > 1:
                target = words[-1]
            if target is not None and target.exact:
                self.reading.written[target.text] = stdin
            if len(words) == 1 or name == "tee":
                return stdin
        if name == "exec" and not state.cloudy and len(words) > 1:
            raise _StopError
        return None

    def call(self, name: str, arguments: Sequence[FieldText], state: State, depth: int) -> None:
        text, body = state.functions[name]
        saved, known = state.positional, state.positional_known
        before = dict(state.variables)
        state.positional, state.positional_known = tuple(arguments), True
        try:
            self.statement(text, body, state, depth + 1)
        except _StopError:
            if self.steps > MAX_STEPS or depth + 1 > MAX_DEPTH or not self._returned:
                raise
        finally:
            self._returned = False
            state.positional, state.positional_known = saved, known
        for key, value in list(state.variables.items()):
            if value is not None and value.local:
                if key in before:
                    state.variables[key] = before[key]
                else:
                    del state.variables[key]

    _returned = False
    _here: tuple[Empty, ...] = ()
    """Variables without text in the here-document that is being read."""

    def evaluate(self, words: Sequence[FieldText], state: State, depth: int) -> None:
        whole = joined(list(words), by=" ") if words else FieldText(Text("", []))
        if not whole.exact:
            self.reading.notes.append(f"`eval` of text that is not known here ({whole.reason}).")
            return
        inner = parse(whole.text)
        self.block(whole.value, inner.children, state, depth + 1)

    def _sourced(self, words: Sequence[FieldText], state: State) -> None:
        what = words[1].text if len(words) > 1 else "a file"
        if not state.outside:
            state.outside = f"`{what}` is read by the script and may set it"

    def builtin(self, name: str, words: list[FieldText], state: State) -> FieldText | None:
        texts = [w.text for w in words[1:]]
        if name in ("exit", "return") and not state.cloudy:
            self._returned = name == "return"
            raise _StopError
        if name == "set":
            self._set(words[1:], state)
        elif name == "shift":
            count = int(texts[0]) if texts and texts[0].isdigit() else 1
            state.positional = state.positional[count:]
            if state.cloudy:
                state.positional_known = False
        elif name in ("source", "."):
            self._sourced(words, state)
        elif name in ("export", "declare", "typeset", "readonly", "local"):
            flags = "".join(t[1:] for t in texts if t.startswith("-"))
            exported = True if name == "export" or "x" in flags else None
            for one in words[1:]:
                if not one.text.startswith("-"):
                    self._declare_text(one, state, exported)
        elif name == "unset":
            for text in texts:
                if not text.startswith("-"):
                    state.unset(text)
        elif name in ("read", "mapfile", "readarray", "getopts", "let"):
            state.blur([t for t in texts if t.isidentifier()], f"`{name}` sets it")
        elif name == "printf":
            if texts[:1] == ["-v"] and len(texts) > 1:
                state.blur([texts[1]], "`printf -v` sets it")
            elif texts[:1] in (["%s"], ["%s\\n"]) and len(words) == 3:
                return words[2]
        elif name == "echo" and not any(t.startswith("-") or "\\" in t for t in texts):
            printed = joined(words[1:], by=" ") if len(words) > 1 else FieldText(Text("", []))
            return replace(printed, value=printed.value + Text.made("\n"))
        return None

    @staticmethod
    def _set(words: Sequence[FieldText], state: State) -> None:
        for number, word in enumerate(words):
            if word.text == "--":
                state.positional = tuple(words[number + 1 :])
                state.positional_known = not state.cloudy
                return
            if word.text.startswith(("-", "+")):
                if "a" in word.text[1:] and word.text[1:] != "o" and not word.text.startswith("--"):
                    state.export_all = word.text[0] == "-"
                continue
            if number and words[number - 1].text.endswith("o"):
                if word.text == "allexport":
                    state.export_all = words[number - 1].text[0] == "-"
                continue
            state.positional = tuple(words[number:])
            state.positional_known = not state.cloudy
            return


def _expansions(root: Node) -> list[Node]:
    """The outermost expansions below a node, in order."""
    found: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in EXPANSIONS:
            found.append(node)
        else:
            stack.extend(reversed(node.children))
    return found


def _named(nodes: Sequence[Node]) -> list[Node]:
    return [n for n in nodes if n.is_named]


def _source(text: Text, node: Node) -> str:
    return text.text[start(node) : end(node)]


def _is_test(node: Node) -> bool:
    if node.type == "negated_command" and node.named_children:
        return _is_test(node.named_children[-1])
    if node.type == "list":
        return _is_test(node.named_children[-1])
    if node.type == "command":
        name = node.child_by_field_name("name")
        return name is not None and end(name) - start(name) <= 4 and _leading(node) in "[t"
    return node.type == "test_command"


def _leading(node: Node) -> str:
    data = node.text or b""
    return data.decode("utf-16-le", "replace")[:1] or " "


def _without_tabs(value: Text) -> Text:
    keep = [
        i
        for i in range(len(value))
        if value.text[i] != "\t" or value.text[value.text.rfind("\n", 0, i) + 1 : i].strip("\t")
    ]
    return Text("".join(value.text[i] for i in keep), [value.at[i] for i in keep])


__all__ = ["BUILTINS", "Invocation", "Reading", "Redirect", "units", "walk"]
