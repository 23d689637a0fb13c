"""Values of each kind that users and authors give a host, drawn from the seed of the run."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final

Draw = Callable[[Random], str]


def _word(draw: Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 8)))


IDS: Final[Mapping[str, Draw]] = {
    "digits with leading zeros": lambda draw: f"00{draw.randint(1, 999_999)}",
    "capitals": lambda draw: f"{_word(draw).title()}{_word(draw).upper()}",
    "dots and slashes": lambda draw: f"{_word(draw)}.{_word(draw)}/../{_word(draw)}_{_word(draw)}",
    "Unicode, composed": lambda draw: f"Am{draw.choice('éèêë')}lie",
    "Unicode, decomposed": lambda draw: f"Ame{draw.choice(chr(0x301) + chr(0x300) + chr(0x302))}lie",
    "beyond the basic plane": lambda draw: f"{_word(draw)} {draw.choice('🚀🎉𝒳𠮷')}",
    "blanks at its ends": lambda draw: f" {_word(draw)}  {_word(draw)} ",
    "an address": lambda draw: f"Zoë “O'{_word(draw).title()}” <{_word(draw)}+{_word(draw)}@example.com>",
    "long": lambda draw: ((_word(draw) + "-") * 50)[:200],
    "empty": lambda _: "",
}
"""Kind → how an id that a customer has chosen is drawn, for example a user's."""
TIMES: Final = (
    "2030-01-31T09:30:00Z",
    "2030-01-31T09:30:00+02:00",
    "2030-01-31T09:30:00.120Z",
    "2030-01-31",
    "09:05",
)
WORDS: Final = ("true", "False", "null", "No", "on", "NaN", "~")
NUMERALS: Final = ("1", "012", "1e3", "-0", "1.10", "1_000", "0x1F")
TEXTS: Final[Mapping[str, Draw]] = {
    **IDS,
    "compatibility characters": lambda draw: f"ﬁ ① {draw.choice('ⅣÅ½')}",
    "line ends": lambda draw: f"{_word(draw)}\r\n\t{_word(draw)}\n\n{_word(draw)} \n",
    "invisible characters": lambda draw: f"{_word(draw)}\u200f\u202e\u00ad\ufeff",
    "markup": lambda draw: (
        f"<b>{_word(draw)} &amp;</b> \\ \" ' \\u0041 %7B%20 {{{{userId}}}} ${{HOME}} $HOME %PATH%"
    ),
    "JSON": lambda draw: f'{{"b": 1.10,  "a": [{draw.randint(1, 9)}, null]}}',
    "a time": lambda draw: draw.choice(TIMES),
    "a word that formats read": lambda draw: draw.choice(WORDS),
    "a number": lambda draw: draw.choice(NUMERALS),
    "long": lambda draw: f"{_word(draw)} e\u0301 " * 400,
    "20,000 characters": lambda draw: (f"{_word(draw)} " * 5000)[:19_999] + ".",
}
NUMBERS: Final = (0, -1, 2**31, -(2**31) - 1, 2**53 - 1, 2**53 + 1, 2**63 - 1, 0.0, 0.1, 1e-7, 1.5e300)
KEYS: Final[tuple[Draw, ...]] = (
    lambda draw: f"{_word(draw)}.{_word(draw)}",
    lambda draw: f"{_word(draw)}/{_word(draw)}",
    lambda draw: f"{_word(draw)}-{_word(draw)} {_word(draw)}",
    lambda draw: f"{_word(draw)}{_word(draw).title()}",
    lambda draw: f"{_word(draw)}_{_word(draw)}",
    lambda draw: f"{_word(draw).title()}",
    lambda draw: f"00{draw.randint(1, 9999)}",
    lambda draw: f"${_word(draw)}",
    lambda draw: f"Ü{_word(draw)}e\u0301é",
    lambda draw: f" {_word(draw)} ",
)


class Values:
    """Draws the values of one check.

    Args:
        seed: of the run, and the check's id: a check draws the same again, whatever runs beside it.
    """

    def __init__(self, seed: str) -> None:
        self.draw = Random(seed)  # noqa: S311  to be repeated

    def users(self) -> Iterator[tuple[str, str]]:
        """Yield one user id of each kind, with the kind."""
        return ((kind, draw(self.draw)) for kind, draw in IDS.items())

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield one text of each kind, with the kind."""
        return ((kind, draw(self.draw)) for kind, draw in TEXTS.items())

    def runs(self) -> list[tuple[str, str, str]]:
        """Return user, content and their kinds, of as many runs as each kind of a user and of a text needs."""
        texts, users = list(self.texts()), list(self.users())
        self.draw.shuffle(texts)
        pairs = [(*users[number % len(users)], *text) for number, text in enumerate(texts)]
        return [
            (user, content, f"a user: {of_user}; a content: {of_text}")
            for of_user, user, of_text, content in pairs
        ]

    def config(self) -> dict[str, Any]:
        """Return a config in which each kind of value stands at the top, in lists and in objects, under each kind of key."""
        texts = [text for kind, text in self.texts() if kind not in {"long", "20,000 characters"}]
        single: list[Any] = [*texts, *TIMES, *WORDS, *NUMERALS, *NUMBERS, True, False, None, [], {}]
        values = [*single, *([value] for value in single)]
        self.draw.shuffle(values)

        def held(made: list[Any]) -> dict[str, Any]:
            return {f"{KEYS[n % len(KEYS)](self.draw)}{n}": value for n, value in enumerate(made)}

        nested = {"list": [held(values), values, [[], {}]], "deep": {"a": {"b": {"c": [held(values[:9])]}}}}
        # Fields of the probe's own form, each with a value that is taken for none.
        own = {"text": "", "count": 0, "flag": False, "rate": 0.0, "nothing": None, "items": [], "empty": {}}
        return {**own, **held(values), "nested": nested, "long": TEXTS["long"](self.draw) * 20}

    def headers(self) -> list[tuple[str, str]]:
        """Return request or answer headers of the plugin's own, with values of each kind that a header may have."""
        values = (
            f'{_word(self.draw)}  A, b; c="D"',
            "007",
            TIMES[0],
            "",
            "v1,Ab3+/Cd4==",
            f"{_word(self.draw)} " * 100 + ".",
        )
        return [(f"x-kit-{number}", value) for number, value in enumerate(values)]
