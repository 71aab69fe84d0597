"""The pages a reader opens: an index of the runs, and each executed notebook.

Made for a room without internet: no script, no font and no style from elsewhere. nbconvert's own
templates load three from a CDN, so only its innermost one is used, inside a page of ours. The pages
hold a policy that forbids scripts and any request, since outputs quote text from launch scripts and
logs that nobody has vetted.
"""

from __future__ import annotations

import functools
import html
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import casebook
from casebook.runs import style
from casebook.runs.files import write_text
from casebook.runs.imports import skip_slow_parser
from casebook.runs.outcome import RunResult, State
from casebook.runs.verdict import rich_text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_FAILED = "papermill-error-cell"
_NUMBER = re.compile(r"[-+\u2212]?[\d.,\u202f ]+(e[-+]?\d+)?%?|nan|NaN|None|inf|", re.IGNORECASE)

# Code folded away, as the reader wants the findings; parameters open, as they are the question;
# tables in a box that scrolls by itself; warnings of libraries folded too.
_CELLS = """
{%- extends 'basic/index.html.j2' -%}
{% block input_group -%}
{%- set asked = cell.metadata.get('tags', []) | select('in', ['parameters', 'injected-parameters']) | list -%}
<details class="code"{% if asked %} open{% endif %}><summary>
{%- if 'injected-parameters' in asked %}Parameters given to this run{% elif asked %}Parameters, as the notebook sets them{% else %}Code{% endif %}
{%- if cell.execution_count %} <span class="count">[{{ cell.execution_count }}]</span>{% endif -%}
</summary>
{{ self.input() }}
</details>
{% endblock input_group %}
{% block stream_stderr -%}
<details class="code"><summary>Messages on stderr</summary>{{ super() }}</details>
{%- endblock stream_stderr %}
{% block data_html scoped -%}<div class="scroll">{{ super() }}</div>{%- endblock data_html %}
"""


def write_site(results: Sequence[RunResult], out: Path) -> Path:
    """Write a page per executed notebook and ``out/index.html``; returns the index's path."""
    for result in results:
        _write_page(result, out)
    index = out / "index.html"
    write_text(index, _index(results, out))
    return index


def page_path(result: RunResult, out: Path) -> Path:
    """Where the page of a run stands."""
    return out / "html" / f"{result.spec.slug}.html"


def _write_page(result: RunResult, out: Path) -> None:
    if result.output is None or not result.output.is_file():
        return
    page = page_path(result, out)
    if result.reused and page.is_file():
        return
    body = _body(result.output)
    if body is None:
        return
    spec = result.spec
    status = ""
    if result.state is not State.OK:
        status = (
            f'<div class="status bad"><p><strong class="bad">{html.escape(_headline(result))}'
            f"</strong></p><p>{rich_text(result.error)}{_to_failed(body)}</p></div>"
        )
    head = (
        '<p class="meta"><a href="../index.html">All runs</a> &middot; '
        f'<a href="../notebooks/{html.escape(result.output.name)}">this notebook, to open in Jupyter</a>'
        f" &middot; {_when(result)}</p>{status}"
    )
    text = _page(f"{spec.title} ({spec.label})", head, body, style.NOTEBOOK + style.highlighting())
    write_text(page, text)


def _to_failed(body: str) -> str:
    return f' <a href="#{_FAILED}">Go to it.</a>' if f'id="{_FAILED}"' in body else ""


def _body(notebook: Path) -> str | None:
    """The cells as HTML; None if the notebook was cut off while it was written."""
    skip_slow_parser()
    import nbformat
    from papermill.execute import ERROR_MARKER_TAG

    try:
        node = nbformat.read(notebook, as_version=4)
    except (OSError, ValueError):
        return None
    for cell in node.cells:
        if ERROR_MARKER_TAG in cell.metadata.get("tags", []):
            # Papermill's banner and its mark before the failed cell; the page has a banner of its own.
            cell.source = f'<span id="{_FAILED}"></span>' if _FAILED in cell.source else ""
        elif cell.cell_type == "code":
            # A widget without a kernel shows nothing; a progress bar would show its first tick.
            cell.outputs = [o for o in cell.outputs if _WIDGET not in o.get("data", {})]
    node.cells = [cell for cell in node.cells if cell.source]
    node.metadata.pop("widgets", None)
    body, _ = _exporter().from_notebook_node(node)
    return re.sub(r"<table\b.*?</table>", _table, body, flags=re.DOTALL)


def _table(found: re.Match[str]) -> str:
    """A table in a box of its own; in one of pandas, columns of numbers are marked."""
    from bs4 import BeautifulSoup

    text = found.group()
    if "dataframe" in text[:80]:
        soup = BeautifulSoup(text, "html.parser")
        rows = [row.find_all(["th", "td"], recursive=False) for row in soup.find_all("tr")]
        for column in range(max(map(len, rows), default=0)):
            cells = [row[column] for row in rows if len(row) == len(rows[-1])]
            values = [c.get_text(strip=True) for c in cells if c.name == "td"]
            if values and all(map(_NUMBER.fullmatch, values)):
                for cell in cells:
                    cell["class"] = "number"
        text = str(soup)
    return f'<div class="scroll">{text}</div>'


@functools.cache
def _exporter() -> Any:
    from jinja2 import DictLoader
    from nbconvert import HTMLExporter

    return HTMLExporter(
        template_name="basic",
        template_file="casebook.html.j2",
        extra_loaders=[DictLoader({"casebook.html.j2": _CELLS})],
        exclude_anchor_links=True,
    )


def _index(results: Sequence[RunResult], out: Path) -> str:
    counts = Counter(_headline(r) for r in results)
    tones = {_headline(r): _tone(r) for r in results}
    listed = "".join(
        f'<li><strong class="{tones[words]}">{count}</strong> {html.escape(words)}</li>'
        for words, count in counts.most_common()
    )
    head = (
        f"<h1>SGLang Casebook: {len(results)} run{'' if len(results) == 1 else 's'}</h1>"
        f'<ul class="counts">{listed}</ul>'
    )
    cards = "\n".join(_card(r, out) for r in results)
    return _page("SGLang Casebook: runs", head, cards, style.INDEX)


def _card(result: RunResult, out: Path) -> str:
    spec = result.spec
    page = page_path(result, out)
    title = html.escape(spec.title)
    if page.is_file():
        title = f'<a href="html/{html.escape(page.name)}">{title}</a>'
    verdict = result.verdict or {}
    sentence = result.error or str(verdict.get("headline", ""))
    said = f"<p>{rich_text(sentence)}</p>" if sentence else ""
    given = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd><code>{html.escape(_short(value))}</code></dd></div>"
        for name, value in spec.parameters.items()
    )
    parameters = f"<dl>{given}</dl>" if given else '<p class="meta">with its default parameters</p>'
    links = [f"{html.escape(spec.label)}", _when(result)]
    if result.output and result.output.is_file():
        links.append(f'<a href="notebooks/{html.escape(result.output.name)}">notebook</a>')
    log = out / "logs" / f"{spec.slug}.log"
    if log.is_file():
        links.append(f'<a href="logs/{html.escape(log.name)}">log</a>')
    tone = _tone(result)
    return (
        f'<article class="card {tone}"><h2>{title}</h2>'
        f'<p><span class="state {tone}">{html.escape(_headline(result))}</span></p>{said}{parameters}'
        f'<p class="meta">{" &middot; ".join(links)}</p></article>'
    )


def _headline(result: RunResult) -> str:
    """What became of the run: the notebook's verdict if it came to one, else the run's state."""
    if result.state in (State.OK, State.VERDICT_FAIL) and result.verdict:
        return str(result.verdict["state"])
    return result.state.words


def _tone(result: RunResult) -> str:
    if result.state is not State.OK:
        return "bad"
    inconclusive = (result.verdict or {}).get("state") == "INCONCLUSIVE"
    return "open" if inconclusive else "good"


def _when(result: RunResult) -> str:
    took = f"{result.seconds:.1f} s"
    started = result.started[:16].replace("T", " ")
    return f"{took}, {html.escape(started)} UTC" if started else took


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _page(title: str, head: str, body: str, css: str) -> str:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html.escape(title)}</title>
<style>{style.PAGE}{css}</style>
</head>
<body>
<header>{head}</header>
<main>
{body}
</main>
<footer>casebook {html.escape(casebook.__version__)}, written {made}</footer>
</body>
</html>
"""
