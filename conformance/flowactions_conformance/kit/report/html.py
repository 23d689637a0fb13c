"""The report as one page that needs neither network nor script: ``report.template.html``, filled in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template

from flowactions_conformance.kit.outcomes import Report
from flowactions_conformance.kit.report.summary import (
    ATTENTION,
    counted,
    headline,
    profiles,
    stale_lines,
    verdict,
    worth_reading,
)
from flowactions_conformance.kit.report.terminal import STATE_WORDS, printable, result_lines, tested_lines


def page(report: Report) -> str:
    """Return the page. Everything that a host says is escaped, and the policy allows nothing but the one style."""
    template, style = (
        resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("report.template.html", "report.css")
    )
    facts = [
        f"contract {report.contract}",
        *(f"{name} {value}" for name, value in tested_lines(report)),
        report.mode + (", strict" if report.strict else ""),
        report.started_at,
        f"{report.seconds:.1f} s",
    ]
    error = report.error
    return Template(template).substitute(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        style=style,
        headline=_text(headline(report)),
        host=_text(report.host),
        verdict=verdict(report),
        facts="<br>".join(map(_text, facts)),
        error="" if error is None else _block(["The host could not be tested", error.message, *error.causes]),
        profiles="".join(
            _row(
                each.name,
                f'<span class="{each.state}">{STATE_WORDS[each.state][0]}</span>',
                counted(each.counts),
            )
            for each in profiles(report)
        ),
        stale=_block(stale_lines(report)) if report.stale_baseline else "",
        look="".join(
            f'<article id="{_text(each.id)}"><h3 class="{each.status}">{_text(each.id)} {_text(each.title)}</h3>'
            f"{_block(result_lines(each))}</article>"
            for each in worth_reading(report)
        ),
        checks="".join(
            _row(
                f'<a href="#{_text(each.id)}">{_text(each.id)}</a>'
                if each.status in ATTENTION
                else _text(each.id),
                f'<span class="{each.status}">{each.status.name.replace("_", " ")}</span>',
                f"{_text(each.title)}<br><small>{_text(each.clause)}</small>",
            )
            for each in report.results
        ),
        output=_text(report.output),
    )


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"


def _block(lines: Iterable[str]) -> str:
    text = _text("\n".join(lines))
    return f'<pre tabindex="0">{text}</pre>'


def _text(text: str) -> str:
    return escape(printable(text))
