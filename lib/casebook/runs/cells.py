"""An executed notebook's cells as HTML, by nbconvert's innermost template with ours around it.

nbconvert's own pages load three scripts from a CDN, so only its ``basic`` template is used, inside a
page of ours.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from casebook.runs.imports import skip_slow_parser

TEMPLATES = Path(__file__).parent / "templates"
FAILED = "papermill-error-cell"
"""The anchor of the cell that failed."""
_WIDGET = "application/vnd.jupyter.widget-view+json"
_NUMBER = re.compile(r"[-+\u2212]?[\d.,\u202f ]+(e[-+]?\d+)?%?|nan|NaN|None|inf|", re.IGNORECASE)


def html_cells(notebook: Path) -> str | None:
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
            cell.source = f'<span id="{FAILED}"></span>' if FAILED in cell.source else ""
        elif cell.cell_type == "code":
            # A widget without a kernel shows nothing; a progress bar would show its first tick.
            cell.outputs = [o for o in cell.outputs if _WIDGET not in o.get("data", {})]
    node.cells = [cell for cell in node.cells if cell.source]
    node.metadata.pop("widgets", None)
    body, _ = _exporter().from_notebook_node(node)
    # What scrolls sideways must take the focus, or a keyboard cannot scroll it.
    body = re.sub(r"<pre(?=[ >])", '<pre tabindex="0"', body)
    return re.sub(r"<table\b.*?</table>", _table, body, flags=re.DOTALL)


@functools.cache
def highlighting() -> str:
    """Colours for code, on a light page and on a dark one."""
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="monokai").get_style_defs(".highlight")
    both = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"
    # The page's own background, not the one of either colour scheme.
    return both + "\n.highlight, .highlight pre { background:var(--code) !important }"


def _table(found: re.Match[str]) -> str:
    """A table in a box of its own; in one of pandas, columns of numbers are marked."""
    from bs4 import BeautifulSoup

    text = found.group()
    if "dataframe" in text[:80]:
        soup = BeautifulSoup(text, "html.parser")
        rows = [row.find_all(["th", "td"], recursive=False) for row in soup.find_all("tr")]
        # Where an index spans rows, only those as long as the last one are alike.
        for column in range(len(rows[-1]) if rows else 0):
            cells = [row[column] for row in rows if len(row) == len(rows[-1])]
            values = [c.get_text(strip=True) for c in cells if c.name == "td"]
            if values and all(map(_NUMBER.fullmatch, values)):
                for cell in cells:
                    cell["class"] = "number"
        text = str(soup)
    # An empty heading is read out as one.
    text = re.sub(r"<th([^>]*)>(?:\s|&nbsp;|\u00a0)*</th>", r"<td\1></td>", text)
    return f'<div class="scroll" tabindex="0">{text}</div>'


@functools.cache
def _exporter() -> Any:
    from nbconvert import HTMLExporter

    return HTMLExporter(
        template_name="basic",
        template_file="cells.html.j2",
        extra_template_basedirs=[],
        extra_loaders=[_loader()],
        exclude_anchor_links=True,
    )


def _loader() -> Any:
    from jinja2 import FileSystemLoader

    return FileSystemLoader(TEMPLATES)
