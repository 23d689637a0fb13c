"""The report as one page that needs neither network nor script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources
from typing import Final

from flowactions_conformance.kit.outcomes import CheckResult, Finding, Report, Sentence, Status
from flowactions_conformance.kit.report.summary import (
    ATTENTION,
    ProfileSummary,
    counted,
    headline,
    not_proved,
    profiles,
    stale_lines,
    verdict,
    worth_reading,
)
from flowactions_conformance.kit.report.terminal import printable, tested_lines

STATE_WORDS: Final = {
    "passed": "passed",
    "known": "passed, with known failures",
    "failed": "failed",
    "error": "error",
    "not_tried": "not proved: a must was not tried",
    "not_claimed": "not claimed, so not proved",
    "not_run": "not run",
}
STATUS_WORDS: Final = {
    Status.PASS: "Pass",
    Status.FAIL: "Fail",
    Status.WARN: "Warning",
    Status.NOT_TESTABLE: "Not testable",
    Status.NOT_TRIED: "Not tried",
    Status.KNOWN: "Known",
    Status.ERROR: "Error",
    Status.NOT_CLAIMED: "Not claimed",
}
FILTERS: Final = (
    ("all", "All"),
    ("attention", "To look at"),
    ("pass", "Passed"),
    ("not_claimed", "Not claimed"),
)


def page(report: Report) -> str:
    """Return the page. Everything that a host says is escaped, and the policy allows nothing but the one style."""
    style = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{_text(headline(report))}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            *_body(report),
            "</body>",
            "</html>",
            "",
        ]
    )


def _body(report: Report) -> Iterator[str]:
    yield '<header class="top">'
    yield f"<p>FlowActions conformance of <code>{_text(report.host)}</code></p>"
    yield f'<h1 class="verdict {verdict(report)}">{_text(headline(report))}</h1>'
    yield '<dl class="facts">'
    for name, value in (
        ("contract", report.contract),
        *tested_lines(report),
        ("host runs", report.mode.replace("-", " ") + (", strict" if report.strict else "")),
        ("started", report.started_at),
        ("took", f"{report.seconds:.1f} s"),
    ):
        yield f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>"
    yield "</dl>"
    yield "</header>"
    yield "<main>"
    if report.error is not None:
        yield '<section aria-labelledby="error"><h2 id="error">The host could not be tested</h2>'
        yield '<div class="check error">'
        yield from _finding(report.error)
        yield "</div></section>"
    else:
        yield from _profiles(report)
    if report.stale_baseline:
        said = "<br>".join(map(_text, stale_lines(report)))
        yield f'<section><h2>Stale in the baseline</h2><p class="check fail">{said}</p></section>'
    attention = worth_reading(report)
    if attention:
        yield f'<section aria-labelledby="look"><h2 id="look">To look at ({len(attention)})</h2>'
        for result in attention:
            yield from _full(result)
        yield "</section>"
    if report.results:
        yield from _all_checks(report)
    yield from _contract(report)
    if report.output:
        yield "<section><h2>Output of the host</h2><details><summary>The last lines that it printed and logged</summary>"
        yield f'<pre tabindex="0">{_text(report.output)}</pre></details></section>'
    yield "</main>"


def _profiles(report: Report) -> Iterator[str]:
    yield '<section aria-labelledby="profiles"><h2 id="profiles">Profiles</h2><table class="profiles">'
    yield '<thead><tr><th scope="col">profile</th><th scope="col">state</th><th scope="col">checks</th></tr></thead>'
    yield "<tbody>"
    for each in profiles(report):
        yield f'<tr class="{each.state}"><th scope="row">{_profile_name(each, report)}</th>'
        yield f'<td><span class="state {each.state}">{STATE_WORDS[each.state]}</span></td>'
        yield f"<td>{_profile_counts(each)}</td></tr>"
    yield "</tbody></table>"
    if not_proved(report):
        yield f'<p class="note">Nothing is proved of {_text(", ".join(not_proved(report)))}: the host does not claim it.</p>'
    yield "</section>"


def _profile_name(profile: ProfileSummary, report: Report) -> str:
    if any(result.profile == profile.name for result in report.results):
        return f'<a href="#profile-{profile.name}">{profile.name}</a>'
    return profile.name


def _profile_counts(profile: ProfileSummary) -> str:
    return "" if profile.state in {"not_claimed", "not_run"} else counted(profile.counts)


def _full(result: CheckResult) -> Iterator[str]:
    yield f'<article class="check {result.status}" id="{_text(result.id)}">'
    yield f'<h3><span class="status {result.status}">{STATUS_WORDS[result.status]}</span> '
    yield f'<a class="id" href="#{_text(result.id)}">{_text(result.id)}</a> {_text(result.title)}</h3>'
    provisional = "" if result.since else ", provisional: a later contract will require it"
    yield f'<p class="meta">{_text(result.profile)}, {result.level}{provisional}, {result.seconds:.1f} s</p>'
    yield f'<dl class="finding"><div><dt>clause</dt><dd>{_clause(result)}'
    yield from (f"<p>{_prose(sentence.text)}</p>" for sentence in result.sentences)
    yield "</dd></div></dl>"
    if result.known:
        yield f'<dl class="finding"><div><dt>accepted</dt><dd>{_text(result.known)}</dd></div></dl>'
    if result.finding is not None:
        yield from _finding(result.finding)
    if result.rerun:
        yield f'<h4>Run this check again</h4><pre tabindex="0">{_text(result.rerun)}</pre>'
    if result.timeline:
        yield f"<details><summary>Timeline ({len(result.timeline)} moments)</summary>"
        yield '<div class="scrolls" tabindex="0"><table class="timeline"><thead><tr><th scope="col">seconds</th>'
        yield '<th scope="col">from</th><th scope="col">what happened</th></tr></thead><tbody>'
        for moment in result.timeline:
            yield (
                f"<tr><td>{moment.at:.3f}</td><td>{_text(moment.source)}</td><td>{_text(moment.text)}</td></tr>"
            )
        yield "</tbody></table></div></details>"
    yield "</article>"


def _finding(finding: Finding) -> Iterator[str]:
    yield f'<p class="message">{_text(finding.message)}</p>'
    if finding.expected or finding.actual:
        yield '<dl class="finding">'
        for name, value in (("expected", finding.expected), ("actual", finding.actual)):
            if value and value != finding.message:
                yield f'<div><dt>{name}</dt><dd><pre tabindex="0">{_text(value)}</pre></dd></div>'
        yield "</dl>"
    if finding.causes:
        yield "<h4>Usual causes</h4><ol>"
        yield from (f"<li>{_text(cause)}</li>" for cause in finding.causes)
        yield "</ol>"
    if finding.logged:
        said = _text("\n".join(finding.logged))
        yield f'<h4>The host logged meanwhile</h4><pre tabindex="0">{said}</pre>'


def _all_checks(report: Report) -> Iterator[str]:
    yield '<section aria-labelledby="checks" class="every"><h2 id="checks">All checks</h2>'
    # The targets come first, so that the style can tell by them which rows to hide.
    yield "".join(f'<span class="target" id="show-{name}"></span>' for name, _ in FILTERS)
    yield '<nav aria-label="Show">'
    for name, label in FILTERS:
        count = sum(_shown_under(result) == name or name == "all" for result in report.results)
        yield f'<a class="by-{name}" href="#show-{name}">{label} ({count})</a>'
    yield "</nav>"
    for profile in profiles(report):
        mine = [result for result in report.results if result.profile == profile.name]
        if mine:
            groups = " ".join(sorted({_shown_under(result) for result in mine}))
            yield f'<details class="group {groups}" id="profile-{profile.name}" open>'
            yield f"<summary>{profile.name} <span>{_text(counted(profile.counts))}</span></summary><ul>"
            yield from _rows(mine)
            yield "</ul></details>"
    yield "</section>"


def _rows(results: Iterable[CheckResult]) -> Iterator[str]:
    for result in results:
        id_ = _text(result.id)
        name = (
            f'<a class="id" href="#{id_}">{id_}</a>'
            if result.status in ATTENTION
            else f'<span class="id">{id_}</span>'
        )
        yield f'<li class="row {_shown_under(result)}"><span class="status {result.status}">'
        yield f"{STATUS_WORDS[result.status]}</span> {name} <span>{_text(result.title)}</span>"
        yield f"<small>{_clause(result)}</small></li>"


def _clause(result: CheckResult) -> str:
    """Return a check's clause, as a link to what the contract says on this page."""
    if not result.sentences:
        return _text(result.clause)
    return f'<a href="#{_anchor(result.sentences[0])}">{_text(result.clause)}</a>'


def _anchor(sentence: Sentence) -> str:
    return f"contract-{hashlib.sha256(repr((sentence.section, sentence.text)).encode()).hexdigest()[:12]}"


def _contract(report: Report) -> Iterator[str]:
    """Yield the sentences of the contract that the checks of this run test, each with these checks."""
    tested_by: dict[Sentence, list[str]] = {}
    for result in report.results:
        for sentence in result.sentences:
            tested_by.setdefault(sentence, []).append(result.id)
    if not tested_by:
        return
    yield '<section aria-labelledby="contract" class="every"><h2 id="contract">What the contract says</h2>'
    for section in dict.fromkeys(sentence.section for sentence in tested_by):
        yield f"<details open><summary>{_prose(section)}</summary><ul>"
        for sentence, ids in tested_by.items():
            if sentence.section == section:
                yield f'<li id="{_anchor(sentence)}">{_prose(sentence.text)} <small>{_text(", ".join(ids))}</small></li>'
        yield "</ul></details>"
    yield "</section>"


def _shown_under(result: CheckResult) -> str:
    return "attention" if result.status in ATTENTION else result.status.value


def _prose(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))


def _text(text: str) -> str:
    return escape(printable(text))
