"""Evaluates the part of PromQL that the alert rules use, over series that were recorded.

It takes the text of the rules as Prometheus would, so that a rule with a wrong name, label or bracket fails here.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Samples: TypeAlias = Sequence[tuple[float, float]]
"""Seconds and value."""

STALE_SECONDS: Final = 300.0
"""A series without a sample for so long is not there."""

_TOKEN: Final = re.compile(
    r'\s*(?:([0-9.]+)([smh])?|([a-zA-Z_:][\w:]*)|("[^"]*")|(!=|==|>=|<=|[-+*/()\[\]{},=<>]))'
)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


class Series(NamedTuple):
    """A series that was recorded."""

    name: str
    labels: Labels
    samples: Samples


def evaluate(expression: str, recorded: Sequence[Series], at: float) -> Vector:
    """Gives the vector of an expression at a time; a rule fires for each element.

    Raises:
        SyntaxError: it is not of the part that is known.
    """
    parser = _Parser(expression, recorded, at)
    found = parser.condition()
    parser.end()
    return {frozenset(): found} if isinstance(found, float) else found


class _Parser:
    """Reads an expression from left to right, and computes it."""

    def __init__(self, text: str, recorded: Sequence[Series], at: float) -> None:
        self._text = text
        self._recorded = recorded
        self._at = at
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise SyntaxError(f"{text[position : position + 20]!r} in {text!r}")
            number, unit, name, quoted, sign = match.groups()
            if number is not None:
                self._tokens.append(("duration" if unit else "number", number + (unit or "")))
            else:
                self._tokens.append(
                    ("name", name) if name else ("text", quoted[1:-1]) if quoted else ("sign", sign)
                )
            position = match.end()
        self._tokens.append(("end", ""))

    def end(self) -> None:
        """Takes that nothing follows."""
        self._expect("")

    def _peek(self) -> str:
        return self._tokens[0][1]

    def _take(self, kind: str | None = None) -> str:
        found, value = self._tokens.pop(0)
        if kind is not None and found != kind:
            raise SyntaxError(f"{value!r} where a {kind} belongs, in {self._text!r}")
        return value

    def _expect(self, value: str) -> None:
        if self._take() != value:
            raise SyntaxError(f"{value!r} is missing in {self._text!r}")

    def condition(self) -> Vector | float:
        """Reads comparisons that are joined by ``and`` and ``unless``."""
        left = self._comparison()
        while self._peek() in {"and", "unless"}:
            stays = self._take() == "and"
            right = _vector(self._comparison())
            left = {labels: value for labels, value in _vector(left).items() if (labels in right) == stays}
        return left

    def _comparison(self) -> Vector | float:
        left = self._quotient()
        if self._peek() not in _COMPARE:
            return left
        compare = _COMPARE[self._take()]
        right = float(self._take("number"))
        return {labels: value for labels, value in _vector(left).items() if compare(value, right)}

    def _quotient(self) -> Vector | float:
        left = self._operand()
        while self._peek() == "/":
            self._take()
            below = _vector(self._operand())
            above = _vector(left)
            left = {
                labels: above[labels] / below[labels] if below[labels] else float("nan")
                for labels in above
                if labels in below
            }
        return left

    def _operand(self) -> Vector | float:
        name = self._take("name")
        if name in {"sum", "max", "absent"}:
            by = self._by() if self._peek() == "by" else ()
            self._expect("(")
            inner = _vector(self.condition())
            self._expect(")")
            if name == "absent":
                return {} if inner else {frozenset(): 1.0}
            return _aggregated(sum if name == "sum" else max, by, inner)
        if name in {"rate", "increase"}:
            self._expect("(")
            metric, wanted = self._take("name"), self._selector()
            self._expect("[")
            window = _seconds(self._take("duration"))
            self._expect("]")
            self._expect(")")
            return self._increase(metric, wanted, window, window if name == "rate" else 1.0)
        return self._present(name, self._selector())

    def _by(self) -> tuple[str, ...]:
        self._take()
        self._expect("(")
        labels = [self._take("name")]
        while self._peek() == ",":
            self._take()
            labels.append(self._take("name"))
        self._expect(")")
        return tuple(labels)

    def _selector(self) -> Callable[[Labels], bool]:
        tests: list[tuple[str, bool, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, sign = self._take("name"), self._take("sign")
                tests.append((label, sign == "=", self._take("text")))
                if self._peek() == ",":
                    self._take()
            self._take()
        return lambda labels: all(
            (dict(labels).get(name, "") == value) == wanted for name, wanted, value in tests
        )

    def _chosen(self, metric: str, wanted: Callable[[Labels], bool]) -> Sequence[Series]:
        return [each for each in self._recorded if each.name == metric and wanted(each.labels)]

    def _present(self, metric: str, wanted: Callable[[Labels], bool]) -> Vector:
        found: Vector = {}
        for each in self._chosen(metric, wanted):
            recent = [value for time, value in each.samples if self._at - STALE_SECONDS < time <= self._at]
            if recent:
                found[each.labels] = recent[-1]
        return found

    def _increase(self, metric: str, wanted: Callable[[Labels], bool], window: float, over: float) -> Vector:
        """Computes the increase within a window, continued to its ends as Prometheus does, resets of counters apart."""
        found: Vector = {}
        for each in self._chosen(metric, wanted):
            seen = [(time, value) for time, value in each.samples if self._at - window <= time <= self._at]
            if len(seen) < 2:
                continue
            (first, low), (last, high) = seen[0], seen[-1]
            grown, lasted = high - low, last - first
            between = lasted / (len(seen) - 1)
            before, after = first - (self._at - window), self._at - last
            if grown > 0 and low >= 0:
                before = min(before, lasted * low / grown)  # a counter was never below zero
            lasted += sum(gap if gap < between * 1.1 else between / 2 for gap in (before, after))
            found[each.labels] = grown * lasted / (last - first) / over
        return found


def _vector(value: Vector | float) -> Vector:
    return {frozenset(): value} if isinstance(value, float) else value


def _aggregated(combine: Callable[[Any], float], by: Sequence[str], inner: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in inner.items():
        key = frozenset((name, value) for name, value in labels if name in by)
        groups.setdefault(key, []).append(value)
    return {labels: combine(values) for labels, values in groups.items()}


def _seconds(text: str) -> float:
    return float(text[:-1]) * _SECONDS[text[-1]]
