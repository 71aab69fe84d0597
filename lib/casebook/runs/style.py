"""The look of the pages: one style sheet, written into each page so that a page can be mailed."""

from __future__ import annotations

import functools

PAGE = """
:root { color-scheme: light dark;
  --paper:#ffffff; --ink:#1d2430; --dim:#5b6574; --line:#d9dee6; --card:#f6f8fa; --link:#0b5cad;
  --good:#1a7f45; --bad:#b42318; --open:#8a5a00; --code:#f3f5f8; }
@media (prefers-color-scheme: dark) { :root {
  --paper:#14181f; --ink:#dfe5ee; --dim:#97a3b4; --line:#313a47; --card:#1b212b; --link:#7cb8ff;
  --good:#5bd08b; --bad:#ff8a80; --open:#e3b341; --code:#1f2630; } }
* { box-sizing:border-box }
html { -webkit-text-size-adjust:100% }
body { margin:0; background:var(--paper); color:var(--ink);
  font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif }
main, header, footer { max-width:60rem; margin:0 auto; padding:0 1.25rem }
header { padding-top:1.5rem } footer { color:var(--dim); font-size:.85rem; padding:2rem 1.25rem }
a { color:var(--link) } a:focus-visible, summary:focus-visible { outline:2px solid var(--link); outline-offset:2px }
h1 { font-size:1.8rem; line-height:1.25; margin:.6em 0 .4em }
h2 { font-size:1.3rem; margin:2em 0 .5em; padding-bottom:.2em; border-bottom:1px solid var(--line) }
h3 { font-size:1.08rem; margin:1.6em 0 .4em }
p, ul, ol, blockquote { max-width:46rem }
blockquote { margin:1em 0; padding:.1em 1em; border-left:4px solid var(--line); color:var(--dim) }
code, pre, kbd { font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace; font-size:.88em }
:not(pre) > code { background:var(--code); padding:.1em .3em; border-radius:4px; overflow-wrap:anywhere }
pre { background:var(--code); border-radius:6px; padding:.7em .9em; overflow-x:auto; line-height:1.45; margin:.5em 0 }
pre code { font-size:1em } img, svg { max-width:100%; height:auto }
.meta { color:var(--dim); font-size:.9rem }
.good { color:var(--good) } .bad { color:var(--bad) } .open { color:var(--open) }
"""

NOTEBOOK = """
.cell { margin:.8em 0 } .anchor-link { display:none } .prompt { display:none }
details.code { margin:.4em 0 } details.code > summary { cursor:pointer; color:var(--dim); font-size:.82rem;
  width:max-content; user-select:none }
details.code .count { opacity:.75 }
.highlight pre { margin:.3em 0 }
.output_area { margin:.5em 0; min-width:0 }
.output_subarea { overflow-x:auto; max-width:100% }
.output_stderr pre { color:var(--dim); border-left:3px solid var(--line) }
.output_error pre { border-left:3px solid var(--bad) }
.output_png img, .output_jpeg img, .output_svg img, .output_svg svg { background:#fff; border-radius:6px; padding:4px }
.scroll { overflow-x:auto; max-width:100% }
table { border-collapse:collapse; font-size:.88rem; line-height:1.4; margin:.5em 0; font-variant-numeric:tabular-nums }
th, td { padding:.35em .7em; border:0; border-bottom:1px solid var(--line); text-align:left; vertical-align:top }
thead th { border-bottom:2px solid var(--line); white-space:nowrap } tbody th { font-weight:600 }
table.dataframe { border:0; width:max-content } table.dataframe td { max-width:30rem }
/* pandas writes a style of its own into each table */
table.dataframe th, table.dataframe td { text-align:left !important; vertical-align:top !important }
table.dataframe .number { text-align:right !important }
caption { text-align:left; color:var(--dim); padding:.3em 0 }
.status { border:1px solid var(--line); border-left:6px solid var(--dim); border-radius:6px; background:var(--card); padding:.6em 1em; margin:1em 0 }
.status.bad { border-left-color:var(--bad); color:inherit } .status p { margin:.2em 0 }
.ansi-bold { font-weight:bold } .ansi-underline { text-decoration:underline }
.ansi-red-fg, .ansi-red-intense-fg { color:var(--bad) } .ansi-green-fg, .ansi-green-intense-fg { color:var(--good) }
.ansi-yellow-fg, .ansi-yellow-intense-fg { color:var(--open) } .ansi-blue-fg, .ansi-blue-intense-fg,
.ansi-cyan-fg, .ansi-cyan-intense-fg { color:var(--link) } .ansi-black-fg, .ansi-black-intense-fg { color:var(--dim) }
@media print { body { font-size:11pt } .scroll, .output_subarea { overflow:visible } }
"""

INDEX = """
.counts { display:flex; flex-wrap:wrap; gap:.4rem 1.2rem; margin:.6em 0 1.4em; padding:0; list-style:none }
.counts strong { font-variant-numeric:tabular-nums }
.card { border:1px solid var(--line); border-left:6px solid var(--dim); border-radius:8px; background:var(--card);
  padding:.9rem 1.1rem; margin:0 0 .9rem }
.card.good { border-left-color:var(--good); color:inherit } .card.bad { border-left-color:var(--bad); color:inherit }
.card.open { border-left-color:var(--open); color:inherit }
.card h2 { margin:0; padding:0; border:0; font-size:1.1rem; line-height:1.35 } .card h2 a { text-decoration:none }
.card h2 a:hover { text-decoration:underline }
.card p { margin:.35em 0 0; max-width:none } .state { font-weight:650 }
.card dl { display:flex; flex-wrap:wrap; gap:.2rem .9rem; margin:.45em 0 0; font-size:.88rem }
.card dl div { display:flex; gap:.35em; min-width:0 } .card dt { color:var(--dim) } .card dd { margin:0; overflow-wrap:anywhere }
"""


@functools.cache
def highlighting() -> str:
    """Colours for code, on a light page and on a dark one."""
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="monokai").get_style_defs(".highlight")
    both = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"
    # The page's own background, not the one of either colour scheme.
    return both + "\n.highlight, .highlight pre { background:var(--code) !important }"
