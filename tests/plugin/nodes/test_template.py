from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowactions_plugin.errors import BodyInvalid, BodyTooLarge, HeadersTooLarge
from flowactions_plugin.log_text import size
from flowactions_plugin.nodes.template import (
    CHAT_MESSAGE_LENGTH,
    Variables,
    chat_message,
    check_json,
    interpolate_header,
    interpolate_json,
    variables_of,
    without_surrogates,
)
from tests.support import a_walk

HOSTILE = 'a"b\\c\n{{userId}}\u2028é'


def values_of(user_id: str, content: str) -> Variables:
    return {"userId": user_id, "content": content}


VALUES = values_of("u-1", HOSTILE)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{userId}} said {{content}}", f"u-1 said {HOSTILE}"),
        ("{{ userId }} {{userid}} {{name}} {userId}", "{{ userId }} {{userid}} {{name}} {userId}"),
        ("{{{userId}}}", "{u-1}"),
        ("", ""),
    ],
)
def test_only_the_two_variables_are_substituted(template: str, expected: str) -> None:
    """userId and content are filled in, anything else stays, and values are not looked at again (§2.4)."""
    assert interpolate_header(template, VALUES, 1000) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{"u": {{userId}}}', {"u": "u-1"}),
        ('{"u": "{{userId}}"}', {"u": "u-1"}),
        ('{"u": "x{{userId}}y{{content}}"}', {"u": f"xu-1y{HOSTILE}"}),
        ("[{{content}}, {{userId}}]", [HOSTILE, "u-1"]),
        ("{{content}}", HOSTILE),
        ('{"{{userId}}": 1}', {"{{userId}}": 1}),
        ("{ {{userId}} : 1}", {"{{userId}}": 1}),
        ('{"a\\"{{userId}}" : "{{userId}}"}', {'a"{{userId}}': "u-1"}),
        ('{"u": "{{other}}"}', {"u": "{{other}}"}),
        ('"\\\\{{userId}}"', "\\u-1"),
    ],
)
def test_a_json_body_is_filled_in(template: str, expected: Any) -> None:
    """Bare tokens become strings, tokens in values are filled in, keys are left alone (§2.4)."""
    assert json.loads(interpolate_json(template, VALUES)) == expected


def test_the_rest_of_a_json_body_stays_as_authored() -> None:
    """Numbers, spacing, order, duplicate keys and escapes are kept to the byte."""
    body = '{ "b":1.10,\n\t"a" : 1e400, "a":"\\u00e9\\/", "n": 12345678901234567890123 }'
    assert interpolate_json(body, VALUES) == body


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": {{other}}}',
        '{"a": {{userId}} {{content}}}',
        '"a\nb"',
        "\ufeff{}",
        "[" * 100_000,
        '{"a": "{{userId}}',
        '["x\\{{userId}}]',
        '["x\\{{userId}}"]',
        '["x{{userId}}y\\{{content}}]',
        '{"a\\{{userId}}": 1}',
        '\\"{{userId}}"',
    ],
)
def test_a_body_that_is_no_json_is_refused(body: str) -> None:
    """What is not JSON raises one clear error, however it is broken (§7.2)."""
    with pytest.raises(BodyInvalid):
        interpolate_json(body, VALUES)


@given(authored=json_values, user_id=st.text(), content=st.text())
def test_a_value_never_breaks_a_body(authored: Any, user_id: str, content: str) -> None:
    """Whatever the values, the body stays JSON and holds exactly them (§2.4)."""
    values = values_of(user_id, content)
    body = json.dumps({"authored": authored, "user": "<U>", "both": "<U>-<C>"}).replace('"<U>"', "{{userId}}")
    body = body.replace("<U>", "{{userId}}").replace("<C>", "{{content}}")
    filled = json.loads(interpolate_json(body, values))
    assert filled["user"] == user_id
    assert filled["both"] == f"{user_id}-{content}"


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    """What UTF-8 cannot hold does not reach a body, a header or a message."""
    assert variables_of(a_walk(user_id="a\ud800", content="\udfffb")) == values_of("a\ufffd", "\ufffdb")


FRAGMENTS = (
    *'"\\{}[]:, \n01axu-.eé\x00\u2028',
    *(
        "{{userId}}",
        "{{content}}",
        "{{",
        "}}",
        '\\"',
        "\\\\",
        '": ',
        '",',
        '"a"',
        "{{user",
        "\\u00e9",
        "\\ud800",
        "true",
        "1e5",
    ),
)
templates = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
structured = st.recursive(
    st.sampled_from(
        [
            '""',
            "{{userId}}",
            '"{{content}}"',
            '"x{{userId}}y"',
            "1.10",
            '"\\\\"',
            '"\\""',
            '"{{"',
            '"a\\"{{content}}"',
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{' , '.join(items)}]")
        | st.lists(
            st.tuples(st.sampled_from(['"{{userId}}"', '"a"', "{{content}}", '"\\"{{content}}"']), inner),
            max_size=3,
        ).map(lambda items: "{" + ",".join(f"{key} :{value}" for key, value in items) + "}")
    ),
    max_leaves=6,
)


def interpolated_by_backtracking(text: str, variables: Variables) -> str:
    """Render in the plain way, in quadratic time: the oracle for small bodies."""

    def value(match: re.Match[str]) -> str:
        return variables[match[1]]

    def substitute(match: re.Match[str]) -> str:
        literal = match[0] if match[1] is None else f'"{match[0]}"'
        if re.compile(r"[ \t\r\n]*:").match(text, match.end()):
            return literal
        return re.sub(
            r"\{\{(userId|content)\}\}",
            lambda token: json.dumps(value(token), ensure_ascii=False)[1:-1],
            literal,
        )

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    body = re.sub(r'"(?:[^"\\]|\\.)*"|\{\{(userId|content)\}\}', substitute, text, flags=re.DOTALL)
    try:
        json.loads(body, parse_float=str, parse_int=str, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise BodyInvalid("The body is not valid JSON.") from None
    return body


def is_sound(template: str) -> bool:
    """Tell whether every string in a template ends, and no variable in one is half of an escape."""
    rest = re.sub(r'"(?:[^"\\]|\\.)*"', "", template, flags=re.DOTALL)
    return '"' not in rest and not re.search(r"(?<!\\)(?:\\\\)*\\\{\{(userId|content)\}\}", template)


@settings(max_examples=400)
@given(
    template=templates | structured,
    values=st.builds(values_of, st.text(max_size=4), st.sampled_from(["", '"', "\\", "a,1", "{{userId}}"])),
)
@example(template='["x{{userId}}y\\{{content}}]', values=values_of(",1,", "c"))
def test_the_result_is_that_of_the_plain_way(template: str, values: Variables) -> None:
    """What the plain way renders is rendered to the same bytes, and what it refuses is refused."""
    expected = None
    with suppress(BodyInvalid):
        expected = interpolated_by_backtracking(template, values)
    if expected is None or not is_sound(template):
        # Of these the plain way takes some, in which a value could change what is a string and what is not.
        with pytest.raises(BodyInvalid):
            interpolate_json(template, values)
    else:
        assert interpolate_json(template, values) == expected


@settings(max_examples=400)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join) | json_values.map(json.dumps))
@example("[" * 100_000)
@example('["\\\\ud800", "\\uDFFF\\ud800"]')
@example("NaN")
@example("1e400")
@example("-")
@example('"\x7f"')
def test_the_syntax_is_that_of_the_standard_library(body: str) -> None:
    """The decoder that builds nothing accepts what the json module accepts, and nothing else."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(name)

    try:
        json.loads(body, parse_float=str, parse_int=str, parse_constant=no_constant)
        valid = True
    except (ValueError, RecursionError):
        valid = False
    try:
        check_json(body.encode())
    except BodyInvalid:
        assert not valid
    else:
        assert valid


MEBIBYTE = 1 << 20
SHORT = values_of("u-1", "hi")


def a_mebibyte(unit: str, start: str = "", end: str = "") -> str:
    """Repeat a unit so often that all of it takes just under a mebibyte in UTF-8."""
    room = MEBIBYTE - len((start + end).encode())
    return start + unit * (room // len(unit.encode())) + end


ADVERSARIAL = {
    "escaped quotes in a string without end": a_mebibyte('\\"', '{"a": "'),
    "escaped backslashes": a_mebibyte("\\\\", '["', '"]'),
    "escapes of surrogates": a_mebibyte("\\ud800", '["', '"]'),
    "empty keys": a_mebibyte('"":1,', "{", '"":1}'),
    "one number": "1" * MEBIBYTE,
    "deep lists": a_mebibyte("[" * 400 + "]" * 400 + ",", "[", "1]"),
    "opening brackets": "[" * MEBIBYTE,
    "many small values before a mistake": a_mebibyte("[],", "[", "x]"),
    "spaces after variables": a_mebibyte("{{userId}}  ", "[", "1]"),
    "braces in a string": a_mebibyte("{{", '["', '"]'),
    "halves of variables": a_mebibyte("{{userId}", '["', '"]'),
    "variables in one key": a_mebibyte("{{userId}}", '{"', '":1}'),
    "variables in and out of strings": a_mebibyte('"{{userId}}",{{content}},', "[", "1]"),
    "variables after escapes": a_mebibyte("\\\\{{userId}}", '["', '"]'),
    "variables in a string without end": a_mebibyte("{{userId}}", '["'),
}


CONTROL = a_mebibyte("x", '{"a": "{{userId}}', '"}')
"""With a variable: a body without any is only checked."""


def seconds(work: Callable[[], object]) -> float:
    """Give the processor time of this thread in the fastest of three runs."""
    taken = []
    for _ in range(3):
        begun = time.thread_time()
        with suppress(BodyInvalid):
            work()
        taken.append(time.thread_time() - begun)
    return min(taken)


@pytest.mark.ci
def test_a_body_costs_by_its_size_and_not_by_its_contents() -> None:
    """Whatever a mebibyte of template holds, it takes at most ten times what that much plain text takes."""
    limit = 2 * MEBIBYTE  # what becomes longer is rendered to its end
    plain = partial(interpolate_json, CONTROL, SHORT, limit)
    costly = {}
    for name, body in ADVERSARIAL.items():
        # Side by side, and again when a busy machine was in the way of one of the two.
        ratios = (seconds(partial(interpolate_json, body, SHORT, limit)) / seconds(plain) for _ in range(5))
        if all(ratio > 10 for ratio in ratios):
            costly[name] = "more than ten times"
    assert costly == {}


def peak(work: Callable[[], object]) -> int:
    """Give the bytes that work takes at its peak."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestSizes:
    """What would be too large is refused before it is built."""

    LONG = values_of("u" * 100_000, "c" * 100_000)

    def refused(self, render: Callable[[], object], error: type[Exception]) -> None:
        def work() -> None:
            with pytest.raises(error):
                render()

        assert peak(work) < 4 * MEBIBYTE
        control = seconds(lambda: interpolate_json(CONTROL, SHORT, 2 * MEBIBYTE))
        begun = time.thread_time()
        work()
        assert time.thread_time() - begun < 5 * control

    @pytest.mark.parametrize("unit", ["{{content}},", '"{{content}}{{userId}}",'])
    def test_a_thousand_variables_of_a_hundred_kilobytes(self, unit: str) -> None:
        """A hundred megabytes of result cost neither memory nor time."""
        body = f"[{unit * 1000}1]"
        self.refused(lambda: interpolate_json(body, self.LONG), BodyTooLarge)

    def test_a_value_that_is_too_large_alone(self) -> None:
        """A value above the limit is not even escaped, and does no harm where it is not used."""
        vast = values_of("u", "\x01" * 20 * MEBIBYTE)
        self.refused(lambda: interpolate_json('"{{content}}"', vast), BodyTooLarge)
        assert interpolate_json('{"{{content}}": {{userId}}}', vast) == '{"{{content}}": "u"}'

    @pytest.mark.parametrize("character", ["x", "é", "😀", "\n", '"'])
    @pytest.mark.parametrize("over", [0, 1])
    def test_the_limit_counts_bytes_as_they_are_sent(self, character: str, over: int) -> None:
        """A result of exactly the limit passes; one byte more does not."""
        sent = len(json.dumps(character * 100, ensure_ascii=False).encode())
        render = partial(interpolate_json, "{{content}}", values_of("", character * 100), sent - over)
        if over:
            with pytest.raises(BodyTooLarge, match=rf"larger than {re.escape(size(sent - 1))}\.$"):
                render()
        else:
            assert len(render().encode()) == sent

    def test_a_template_above_the_limit_is_refused_whatever_its_values(self) -> None:
        """Also when its result would be below."""
        with pytest.raises(BodyTooLarge):
            interpolate_json('"{{content}}{{content}}"', values_of("", ""), 20)
        assert interpolate_json('"{{content}}{{content}}"', values_of("", ""), 24) == '""'
        with pytest.raises(BodyTooLarge):
            interpolate_json('"éé{{content}}"', values_of("", ""), 16)

    def test_a_header_is_bounded(self) -> None:
        """A value as long as the limit passes, a longer one does not, and a huge one is not built."""
        assert interpolate_header("a {{content}}", values_of("", "x" * 98), 100) == "a " + "x" * 98
        with pytest.raises(HeadersTooLarge):
            interpolate_header("a {{content}}", values_of("", "x" * 99), 100)
        self.refused(lambda: interpolate_header("{{content}}" * 1000, self.LONG, 8192), HeadersTooLarge)

    @pytest.mark.parametrize("content", ["c" * 100_000, " " * 100_000, "<" * 100_000])
    def test_a_message_is_bounded(self, content: str) -> None:
        """Of a hundred megabytes of message, what is cut is not put together first."""
        values = values_of("", content)
        assert peak(lambda: chat_message("{{content}}" * 1000 + "end", values)) < 4 * MEBIBYTE

    def test_surrogates_are_replaced_in_linear_time(self) -> None:
        """A text of nothing but lone surrogates costs little more than a plain one is rendered for."""
        control = seconds(lambda: interpolate_json(CONTROL, SHORT, 2 * MEBIBYTE))
        assert seconds(lambda: without_surrogates("\ud800" * MEBIBYTE)) < 20 * control


class TestChatMessage:
    def test_substituted_text_is_escaped_and_the_authors_is_not(self) -> None:
        """An end user cannot ping a channel or fake a link; the author can (§2.1)."""
        values = values_of("<@U1>", "<!channel> <https://x|y> & {{userId}}")
        text = chat_message("<!here> {{userId}}: {{content}}", values)
        assert text == "<!here> &lt;@U1&gt;: &lt;!channel&gt; &lt;https://x|y&gt; &amp; {{userId}}"

    @given(
        template=st.lists(
            st.sampled_from([*" \n\u3000<a&", "{{userId}}", "{{content}}", "b" * 1999]), max_size=12
        ).map("".join),
        values=st.builds(
            values_of,
            st.sampled_from(["", " ", "u", "<" * 900]),
            st.sampled_from(["", " \t", "c" * 3995, "\n" * 5000]),
        ),
    )
    def test_the_result_is_that_of_the_plain_way(self, template: str, values: Variables) -> None:
        """Substitute, trim, cut: as if all of it were put together first."""
        escaped = {
            name: value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            for name, value in values.items()
        }
        whole = interpolate_header(template, escaped, 1 << 20).strip()
        expected = whole[:CHAT_MESSAGE_LENGTH]
        if len(whole) > CHAT_MESSAGE_LENGTH:
            split = re.search("&[a-z]{0,3}$", expected)
            if split and re.compile("&(amp|lt|gt);").match(whole, split.start()):
                expected = expected[: split.start()]
        assert chat_message(template, values) == expected

    @pytest.mark.parametrize(("character", "entity"), [("<", "&lt;"), (">", "&gt;"), ("&", "&amp;")])
    def test_an_entity_that_ends_at_the_limit_stays(self, character: str, entity: str) -> None:
        """Only an entity that the cut would split is left out."""
        before = "x" * (CHAT_MESSAGE_LENGTH - len(entity))
        text = chat_message("{{content}}", values_of("", before + character + "more"))
        assert text == before + entity

    @pytest.mark.parametrize(
        ("before", "behind", "expected"),
        [
            ("```" + "x" * 3990, "x" * 50 + "```", "```" + "x" * 3990 + "xxxx```"),
            ("```" + "x" * 3995, "```", "```" + "x" * 3994 + "```"),
            ("```" + "x\n" * 1997, "x" * 50 + "```", "```" + "x\n" * 1997 + "```"),
            ("*" + "x" * 3990 + "\n", "no bold of two lines*", "*" + "x" * 3990 + "\nno bold "),
            ("x" * 3998, "```x```", "x" * 3998),
            ("x" * 3990 + " `code", "code` more", "x" * 3990 + " `codecod`"),
            ("x" * 3990 + " *bold", "er* more", "x" * 3990 + " *bolder* "),
            ("x" * 3990 + " *bold ", "er* more", "x" * 3990 + " *bold er*"),
            ("x" * 3990 + " *bo     ", "er* more", "x" * 3990 + " *bo*"),
            ("x" * 3990 + " *_~b", "bbbb~_*", "x" * 3990 + " *_~bbb~_*"),
            ("x" * 3990 + " <https://", "e.example>", "x" * 3990 + " "),
            ("x" * 3980 + " <https://e|lab", "el more>", "x" * 3980 + " <https://e|label m>"),
            ("x" * 3990 + " <@U0123", "45678> hi", "x" * 3990 + " "),
            ("x" * 3990 + " <!chan", "nel> hi", "x" * 3990 + " "),
            ("```" + "x" * 3990 + "&am", "p;```", "```" + "x" * 3990 + "```"),
            ("*" + "x" * 3990 + " <https://e", ".example>*", "*" + "x" * 3990 + "*"),
            ("x" * 3993 + " <a:b|", "label> more", "x" * 3993 + " "),
            ("x" * 3988 + " `a *b` cd", "eeeee* more", "x" * 3988 + " `a *b` cdee"),
            ("x" * 3990 + " **bo", "ldbolder* more", "x" * 3990 + " **boldbo*"),
            ("```" + "x" * 3990 + "\n", "y" * 50 + "```", "```" + "x" * 3990 + "\nyyy```"),
        ],
    )
    def test_a_cut_closes_what_it_leaves_open(self, before: str, behind: str, expected: str) -> None:
        """A mark is added, within 4000 characters; what cannot be closed is left out whole."""
        text = chat_message(before + behind + "." * 100, VALUES)
        assert text == expected
        assert len(text) <= CHAT_MESSAGE_LENGTH

    @pytest.mark.parametrize(
        "text",
        [
            "5 * 3 ",
            "a_b_c",
            "``` ",
            "`",
            "*bold* ",
            "_it_ ~no~ ",
            "a < b > c ",
            "<https://e> ",
            "```x```\n",
            "* point\n",
            "*open\n",
            "> quote\n",
            "R&D ",
            "2*3*4 ",
            "*",
            "~ ",
            "<@",
            "\U0001f600",
            "e\u0301",
        ],
    )
    def test_a_text_with_nothing_open_keeps_its_4000_characters(self, text: str) -> None:
        """Nothing is added, and nothing is left out."""
        for offset in range(len(text)):
            whole = "x" * (4000 % len(text)) + text * 4000  # the cut is between two of them
            assert chat_message(whole.strip(), VALUES) == whole.strip()[:4000]
            if len(text) < 3 or not set(text) & set("*_~`<&"):
                shifted = "x" * offset + text * 4000
                assert chat_message(shifted.strip(), VALUES) == shifted.strip()[:4000]

    @given(st.text("*_~`<>|&@:;\n ab", max_size=60), st.integers(1, 60), st.integers(0, 60))
    def test_a_cut_of_any_text_is_a_beginning_of_it_and_marks(self, text: str, times: int, offset: int) -> None:
        """Within 4000 characters, and not empty."""
        whole = ("x" * (CHAT_MESSAGE_LENGTH - offset) + text * times + "." * 100).strip()
        cut = chat_message(whole, VALUES)
        assert len(cut) <= CHAT_MESSAGE_LENGTH
        kept = next(number for number in range(len(cut), -1, -1) if whole.startswith(cut[:number]))
        assert kept > CHAT_MESSAGE_LENGTH - 130
        assert set(cut[kept:]) <= set("*_~`>")

    @pytest.mark.ci
    def test_a_cut_takes_linear_time(self) -> None:
        """Whatever the markup is: of hostile texts, none takes much longer than a plain one is rendered for."""
        control = seconds(lambda: interpolate_json(CONTROL, SHORT, 2 * MEBIBYTE))
        for part in (
            "*a ",
            "`",
            "``` ",
            "<a:",
            "<a:|",
            "_*~a",
            "*a* ",
            "*`a` ",
            "*\n",
            "<a:b>*x",
            "*a<a:b ",
            "&amp",
            "*  ",
        ):
            hostile = part * (MEBIBYTE // len(part))
            assert seconds(partial(chat_message, hostile, SHORT)) < 20 * control, part
