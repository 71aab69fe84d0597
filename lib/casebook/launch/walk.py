"""Read a bash script from top to bottom and list the commands it would run, with their exact words.

Nothing is executed. Where the script's course depends on the world (a test on a file, a command's
status) both ways are read and what they assign is held to be uncertain from there on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tree_sitter import Node

from casebook.launch import conditions
from casebook.launch.bash_tree import end, errors, named, parse, source_of, start
from casebook.launch.field_text import FieldText
from casebook.launch.invocation import Reading
from casebook.launch.shell_state import State
from casebook.launch.source import NOWHERE, Text
from casebook.launch.walk_commands import MAX_DEPTH, MAX_STEPS, CommandReader, StopError

MAX_ROUNDS = 256


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
    except StopError:
        pass
    except RecursionError:
        reading.notes.append("The script is nested too deeply to be read without running it.")
    return reading


class _Walker(CommandReader):
    """The course of a script: sequence, conditions, loops."""

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
            raise StopError
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
            except StopError:
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
                state.functions[source_of(text, name)] = (text, body)
        elif kind == "ERROR":
            self.block(text, [c for c in node.named_children if c.type != "comment"], state, depth)
        return None

    def _limits(self) -> None:
        if self.steps > MAX_STEPS:
            raise StopError

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
            except StopError:
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
        source = source_of(text, node)
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
                arms.append((named(child.children[:split]), named(child.children[split:])))
            elif child.type == "else_clause":
                tail = named(child.children)
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
        except StopError:
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
                state.blur(re.findall(r"[A-Za-z_]\w*", source_of(text, other)), "a loop counts it")
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
        name = source_of(text, variable)
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
                ends.append(self._branch(text, named(item.children[behind + 1 :]), state, depth))
        state.merge(ends, "it depends on a case")


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
