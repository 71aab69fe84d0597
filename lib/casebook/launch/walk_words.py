"""Reading a script's words: what a variable gets, what an assignment exports, where output goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from tree_sitter import Node

from casebook.launch.bash_tree import end, source_of, start
from casebook.launch.expand import Expander
from casebook.launch.field_text import FieldText
from casebook.launch.invocation import Reading, Redirect
from casebook.launch.shell_state import State
from casebook.launch.source import Text
from casebook.launch.word_groups import word_groups


class WordReader(ABC):
    """Words, assignments and redirections of a script, against the state of its shell."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.steps = 0

    @abstractmethod
    def statement(
        self, text: Text, node: Node, state: State, depth: int, stdin: FieldText | None = None
    ) -> FieldText | None:
        """Read one statement; returns what it would print, where that is known."""

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
        name = source_of(text, name_node)
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
        options = [source_of(text, c) for c in node.named_children if c.type == "word"]
        if keyword == "unset" or keyword == "unsetenv":
            for child in node.named_children:
                if child.type == "variable_name":
                    state.unset(source_of(text, child))
                elif child.type == "word" and not source_of(text, child).startswith("-"):
                    state.functions.pop(source_of(text, child), None)
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
                state.mark_exported(source_of(text, child), export)
                if source_of(text, child) not in state.variables and state.outside:
                    state.inherited |= {source_of(text, child)}
            elif child.type not in ("word", "comment", "number") and not child.type.startswith("-"):
                fields = self.words(text, [child], self.expander(state))
                for one in fields:
                    self._declare_text(one, state, export)

    @staticmethod
    def _declare_text(one: FieldText, state: State, export: bool | None) -> None:
        name, equals, _ = one.text.partition("=")
        if equals and name.isidentifier():
            state.assign(name, [one.behind(len(name) + 1)], export=export)
        elif export is not None:
            state.mark_exported(one.text, export)

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
