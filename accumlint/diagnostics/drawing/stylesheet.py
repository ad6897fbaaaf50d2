"""How the page looks: quiet, in light and dark, on paper."""

from __future__ import annotations

_LIGHT = """\
  --paper: #fcfcfa; --raised: #f4f4f0; --line: #dcdcd6; --faint: #ecece7;
  --ink: #22262b; --quiet: #5d646c;
  --bad: #b3361f; --bad-tint: #fbe9e4; --good: #1d6b50; --good-tint: #e3f2eb;
  --open: #7a5a0b; --open-tint: #f7efd9; --blue: #2d5f96; --blue-tint: #dfe9f4;
"""
_DARK = """\
  --paper: #16191c; --raised: #1e2226; --line: #363c42; --faint: #24292e;
  --ink: #e4e6e8; --quiet: #9ba4ad;
  --bad: #f28b72; --bad-tint: #3a211b; --good: #72c9a5; --good-tint: #173026;
  --open: #dcb95c; --open-tint: #322a14; --blue: #84b4e8; --blue-tint: #1d3147;
"""
# VS Code names its theme on the body, whatever the system prefers, and gives pages a style that ours overrules.
_COLOURS = f"""
:root {{
  color-scheme: light dark;
{_LIGHT}}}
@media (prefers-color-scheme: dark) {{
  :root {{
{_DARK}  }}
}}
body.vscode-light, body.vscode-high-contrast-light {{
  color-scheme: light;
{_LIGHT}}}
body.vscode-dark, body.vscode-high-contrast:not(.vscode-high-contrast-light) {{
  color-scheme: dark;
{_DARK}}}
body[data-vscode-theme-kind] {{ --paper: var(--vscode-editor-background); padding-top: 1.25rem; }}
body[data-vscode-theme-kind] article:first-child {{ margin-top: 1.25rem; padding-top: 1.25rem; }}
body[data-vscode-theme-kind] code {{ background: none; color: inherit; padding: 0; }}
"""
# No colour carries a meaning alone: what is wrong is also struck through, crossed or said.
STYLE = (
    _COLOURS
    + """\
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 5rem; max-width: 70rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif;
}
h1, h2, h3, p, figure, pre, dl, dd, ul { margin: 0; padding: 0; }
h1 { font-size: .95rem; font-weight: 600; color: var(--quiet); letter-spacing: .01em; }
h2 { font-size: 1.35rem; font-weight: 650; line-height: 1.3; overflow-wrap: anywhere; }
h2 .code { color: var(--quiet); font-weight: 500; }
h3 { font-size: 1rem; font-weight: 650; margin: 2rem 0 .25rem; }
.tally { font-size: 1.6rem; font-weight: 650; line-height: 1.3; overflow-wrap: anywhere; }
p code, dd code { font-size: .92em; }
pre, code, .place { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.place { font-size: .85rem; color: var(--quiet); overflow-wrap: anywhere; }
nav { margin-top: 1.25rem; }
nav ul { list-style: none; }
nav a {
  display: grid; grid-template-columns: 9rem minmax(min-content, 24rem) 1fr; gap: 0 1rem;
  align-items: baseline; padding: .3rem 0; border-top: 1px solid var(--faint);
  color: inherit; text-decoration: none;
}
nav a:hover span:nth-child(2) { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; border-radius: 3px; }
body:has(.wide) { max-width: 90rem; }
.wide article { content-visibility: auto; contain-intrinsic-size: auto 40rem; }
.beside { display: grid; grid-template-columns: minmax(0, 26rem) minmax(0, 1fr); gap: 0 2.5rem; }
.beside .source { font-size: .8rem; }
.beside figure { margin-top: 1rem; }
.verdict.error { color: var(--bad); }
.verdict.warning { color: var(--open); }
.verdict.info { color: var(--blue); }
article > header .error { background: var(--bad-tint); }
article > header .warning { background: var(--open-tint); }
article > header .info { background: var(--blue-tint); }
.files > ul { columns: 32rem; column-gap: 3rem; }
.files > ul > li { padding-top: 1rem; break-inside: avoid; }
.files a { grid-template-columns: 4.5rem minmax(min-content, 1fr) max-content; }
.files > ul > li > .place { display: block; color: var(--ink); font-weight: 600; }
.filter { border: 0; margin: 1rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.25rem; }
.filter legend { float: left; padding: 0; margin-right: 1rem; color: var(--quiet); }
.filter label { cursor: pointer; }
.filter input { accent-color: var(--blue); }
body:has(#only-error:checked) .finding:not(.error),
body:has(#only-warning:checked) .finding:not(.warning),
body:has(#only-info:checked) .finding:not(.info) { display: none; }
.related { list-style: none; margin-top: .5rem; font-size: .9rem; }
.why { max-width: 46rem; margin-top: .5rem; }
.left-over { margin-top: 3.5rem; border-top: 1px solid var(--line); padding-top: 2rem; }
.diff .added, .diff .removed, .diff .near, .diff .gap { display: inline-block; min-width: 100%; }
.diff .added { background: var(--good-tint); color: var(--good); }
.diff .removed { background: var(--bad-tint); color: var(--bad); }
.diff .near { color: var(--quiet); }
article { margin-top: 3.5rem; padding-top: 2rem; border-top: 1px solid var(--line); }
.verdict { font-size: .9rem; font-weight: 650; }
.verdict.bad { color: var(--bad); }
.verdict.good { color: var(--good); }
.verdict.open { color: var(--open); }
article > header .verdict {
  display: inline-block; padding: .05rem .6rem; border-radius: 1rem; margin-bottom: .5rem;
}
article > header .bad { background: var(--bad-tint); }
article > header .good { background: var(--good-tint); }
article > header .open { background: var(--open-tint); }
.reason { margin-top: .75rem; font-size: 1.1rem; max-width: 46rem; }
.figure { white-space: nowrap; }
section .reason { margin-top: .25rem; font-size: 1rem; }
pre {
  overflow-x: auto; padding: .75rem 1rem; background: var(--raised); border-radius: 6px;
  font-size: .85rem; line-height: 1.6; margin-top: 1rem;
}
.source { padding: .5rem 0; }
.source code { display: inline-block; min-width: 100%; }
.source span span { color: var(--quiet); }
.source .near, .source .flagged { display: inline-block; min-width: 100%; padding: 0 1rem; }
.source .near { color: var(--quiet); }
.source .flagged { background: var(--bad-tint); }
.source .marked { display: inline-block; min-width: 100%; padding: 0 1rem; }
.setting { font-size: .9rem; color: var(--quiet); margin-top: .15rem; }
.partly { margin-top: .75rem; color: var(--open); font-size: .95rem; max-width: 46rem; }
.found { list-style: none; margin-top: 1rem; }
.found li {
  display: grid; grid-template-columns: minmax(min-content, 20rem) 6rem 1fr; gap: 0 1rem;
  align-items: baseline; padding: .35rem 0; border-top: 1px solid var(--faint);
}
.found .rule { font-weight: 600; font-size: .95rem; }
.found .said { font-size: .95rem; }
.keys { display: flex; flex-wrap: wrap; gap: 0 1.25rem; margin-top: .15rem; }
.keys b { font-weight: 600; color: var(--ink); }
.key { display: inline-block; vertical-align: -.2rem; }
.sums {
  margin-top: .75rem; font-size: .9rem; grid-template-columns: max-content minmax(0, 1fr);
}
.sums .bad { color: var(--bad); }
figure { margin-top: 1.5rem; }
figcaption { font-size: .85rem; color: var(--quiet); margin-bottom: .5rem; }
figcaption strong { color: var(--ink); font-weight: 600; }
.charts { display: flex; flex-wrap: wrap; gap: 0 3rem; }
.charts figure { max-width: 19rem; }
.charts figcaption { min-height: 4.2em; }
.charts figcaption strong { display: block; }
.charts svg { max-width: 100%; height: auto; }
.updates.charts figure { max-width: 27rem; }
.updates .keys { min-height: 1.5em; }
/* Where more stands at the right, the edge is shaded: the shade stays, and what covers it moves with the content. */
.scroll {
  overflow-x: auto; background: no-repeat right / .75rem 100%;
  background-image: linear-gradient(var(--paper), var(--paper)), linear-gradient(to left, var(--line), transparent);
  background-attachment: local, scroll;
}
svg { display: block; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
svg .small {
  font-size: 11px; paint-order: stroke;
  stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round;
}
svg .middle, svg .number { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .number { font-weight: 600; }
svg text.quiet { fill: var(--quiet); }
svg text.bad, svg .number.lost { fill: var(--bad); }
svg text.good { fill: var(--blue); }
svg .number.open { fill: var(--quiet); }
svg path { fill: none; stroke: var(--line); stroke-width: 1; }
.bracket { stroke: var(--quiet); }
.bracket.bad { stroke: var(--bad); }
.tile { stroke: var(--blue); fill: var(--blue-tint); }
.tile.lost { stroke: var(--bad); fill: none; stroke-dasharray: 3 2; }
.tile.again { stroke: var(--bad); fill: var(--bad-tint); stroke-width: 2; }
.tile.open { stroke: var(--quiet); fill: none; stroke-dasharray: 3 2; }
svg .strike { stroke: var(--bad); stroke-width: 1.5; }
svg .area { fill: var(--blue-tint); stroke: none; }
svg .stairs { stroke: var(--blue); stroke-width: 1.5; }
svg .applies { stroke: var(--ink); stroke-width: 2; }
svg .whole-window { stroke: var(--line); stroke-dasharray: 3 3; }
svg .lane { stroke: var(--faint); }
.mark { fill: var(--quiet); }
.mark.backward { fill: var(--blue); }
.mark.wrong { fill: var(--bad); }
.mark.step { fill: var(--ink); }
.mark.clear { fill: var(--paper); stroke: var(--quiet); stroke-width: 1.5; }
.flagged { fill: none; stroke: var(--open); stroke-width: 1.5; }
svg .cross { stroke: var(--bad); stroke-width: 2.5; }
svg .epoch { stroke: var(--quiet); stroke-dasharray: 2 3; }
svg .raised { stroke: var(--bad); stroke-width: 2.5; }
.reference { fill: none; stroke: var(--quiet); stroke-dasharray: 3 2; }
.bar { stroke-width: 1.5; }
.bar.open { fill: var(--faint); stroke: var(--quiet); }
.bar.good { fill: var(--blue-tint); stroke: var(--blue); }
.bar.bad { fill: var(--bad-tint); stroke: var(--bad); }
svg .curve { stroke-width: 2; }
svg .curve.good { stroke: var(--blue); }
svg .curve.bad { stroke: var(--bad); }
svg .curve.applied { stroke: var(--blue); }
svg .curve.wanted { stroke: var(--ink); stroke-dasharray: 7 4; }
svg .curve.unclipped { stroke: var(--line); stroke-width: 6; }
svg .dots { stroke: var(--blue); stroke-width: 5; stroke-linecap: round; }
svg .span { stroke: var(--quiet); stroke-width: 1.5; }
.sheet { fill: var(--paper); }
svg text.head { font-size: 15px; font-weight: 650; }
svg text.told { font-weight: 600; }
svg text.open { fill: var(--open); }
svg .base { stroke: var(--line); }
svg .one { stroke: var(--ink); stroke-dasharray: 4 3; }
svg .whole { stroke: var(--line); stroke-width: 9; stroke-linecap: round; }
.whole-tip { fill: var(--quiet); }
svg .arrow { stroke-width: 2.5; stroke-linecap: round; }
svg .arrow.bad, svg .gap.bad { stroke: var(--bad); }
svg .arrow.good { stroke: var(--blue); }
svg .gap.good { stroke: none; }
svg .gap { stroke-dasharray: 2 4; stroke-width: 1.5; }
.tip.bad { fill: var(--bad); }
.tip.good { fill: var(--blue); }
.origin { fill: var(--ink); }
table {
  border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums;
  margin-top: 1rem;
}
caption { text-align: left; white-space: nowrap; color: var(--quiet); padding-bottom: .35rem; }
th, td {
  text-align: right; padding: .25rem .9rem .25rem 0; border-top: 1px solid var(--faint);
  white-space: nowrap; font-weight: 400;
}
thead th { color: var(--quiet); border-top: 0; vertical-align: bottom; }
.words td, .words th:not(:first-child) { text-align: left; }
.words td:last-child { white-space: normal; min-width: 16rem; }
.control {
  margin-top: 1.25rem; padding: .6rem 1rem; background: var(--raised); border-radius: 6px;
  max-width: 46rem; font-size: .95rem;
}
details { margin-top: .75rem; font-size: .9rem; }
summary { cursor: pointer; color: var(--quiet); width: fit-content; }
summary:hover { color: var(--ink); }
dl {
  margin-top: .5rem; display: grid; grid-template-columns: max-content 1fr;
  gap: .15rem 1.25rem;
}
dt { color: var(--quiet); grid-column: 1; }
dd { grid-column: 2; overflow-wrap: anywhere; }
@media (min-width: 64rem) {
  .scroll svg { max-width: max(100%, 44rem); height: auto; }
}
@media (max-width: 64rem) {
  .beside { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  nav a { grid-template-columns: 6rem 1fr; }
  nav a .place { grid-column: 2; }
  dl { display: block; }
  dt { margin-top: .5rem; }
  .charts figcaption { min-height: 0; }
  .found li { grid-template-columns: 1fr max-content; }
  .found .said { grid-column: 1 / -1; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #fff; --raised: #f6f6f4; --line: #ccc; --faint: #e6e6e6; --ink: #000; --quiet: #555;
    --bad: #b3361f; --bad-tint: #fbe9e4; --good: #1d6b50; --good-tint: #e3f2eb;
    --open: #7a5a0b; --open-tint: #f7efd9; --blue: #2d5f96; --blue-tint: #dfe9f4;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  nav, details { display: none; }
  article { margin: 0; padding: 1.5rem 0; }
  article > header { break-inside: avoid; }
  article > header, .reason, .source { break-after: avoid; }
  figure, table, pre, .control { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .charts { gap: 0 1.5rem; }
  .charts figure { max-width: 30%; }
  .scroll, pre { overflow: visible; }
  .scroll svg { max-width: 100%; height: auto; }
}
"""
)
