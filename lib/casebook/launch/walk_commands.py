"""Reading a script's commands: what is started, what a builtin changes, which function is called."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tree_sitter import Node

from casebook.launch.bash_tree import end, parse, source_of, start
from casebook.launch.field_text import Empty, FieldText, joined
from casebook.launch.heredoc import heredoc
from casebook.launch.invocation import BUILTINS, Invocation, Redirect
from casebook.launch.shell_state import State
from casebook.launch.source import Text
from casebook.launch.walk_words import WordReader
from casebook.launch.word_groups import line_end

MAX_STEPS = 50_000

MAX_DEPTH = 25


class StopError(Exception):
    """``exit`` or ``return`` was reached, or a limit."""


class CommandReader(WordReader):
    """Commands of a script: which program, with which words, and what builtins do to the state."""

    @abstractmethod
    def block(self, text: Text, nodes: Iterable[Node], state: State, depth: int) -> None:
        """Read statements one after the other."""

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
                stdin = heredoc(text, child, expander)
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
                    prefix[source_of(text, name)] = self.value(text, child, value, state)
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
        words = self.words(
            text, nodes, expander, until=line_end(text, end(nodes[-1]) if nodes else 0)
        )
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
            raise StopError
        return None

    def call(self, name: str, arguments: Sequence[FieldText], state: State, depth: int) -> None:
        text, body = state.functions[name]
        saved, known = state.positional, state.positional_known
        before = dict(state.variables)
        state.positional, state.positional_known = tuple(arguments), True
        try:
            self.statement(text, body, state, depth + 1)
        except StopError:
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
            raise StopError
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
