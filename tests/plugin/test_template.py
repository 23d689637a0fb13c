from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes.template import (
    CHAT_MESSAGE_LENGTH,
    Variables,
    chat_message,
    interpolate,
    interpolate_json,
    variables_of,
)
from tests.support import a_walk

HOSTILE = 'a"b\\c\n{{userId}}\u2028é'
VALUES = Variables(user_id="u-1", content=HOSTILE)

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
    assert interpolate(template, VALUES) == expected


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
    ],
)
def test_a_body_that_is_no_json_is_refused(body: str) -> None:
    """What is not JSON raises one clear error, however it is broken (§7.2)."""
    with pytest.raises(BodyInvalid):
        interpolate_json(body, VALUES)


@given(authored=json_values, user_id=st.text(), content=st.text())
def test_a_value_never_breaks_a_body(authored: Any, user_id: str, content: str) -> None:
    """Whatever the values, the body stays JSON and holds exactly them (§2.4)."""
    values = Variables(user_id, content)
    body = json.dumps({"authored": authored, "user": "<U>", "both": "<U>-<C>"}).replace('"<U>"', "{{userId}}")
    body = body.replace("<U>", "{{userId}}").replace("<C>", "{{content}}")
    filled = json.loads(interpolate_json(body, values))
    assert filled["user"] == user_id
    assert filled["both"] == f"{user_id}-{content}"


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    """What UTF-8 cannot hold does not reach a body, a header or a message."""
    assert variables_of(a_walk(user_id="a\ud800", content="\udfffb")) == Variables("a\ufffd", "\ufffdb")


class TestChatMessage:
    def test_substituted_text_is_escaped_and_the_authors_is_not(self) -> None:
        """An end user cannot ping a channel or fake a link; the author can (§2.1)."""
        values = Variables("<@U1>", "<!channel> <https://x|y> & {{userId}}")
        text = chat_message("<!here> {{userId}}: {{content}}", values)
        assert text == "<!here> &lt;@U1&gt;: &lt;!channel&gt; &lt;https://x|y&gt; &amp; {{userId}}"

    def test_it_is_trimmed_before_it_is_cut(self) -> None:
        """Space around the message goes first, then 4000 characters stay."""
        assert chat_message("  " + "a" * 5000 + "  ", VALUES) == "a" * 4000
        assert chat_message(" \n\t ", VALUES) == ""

    def test_substitution_comes_before_the_cut(self) -> None:
        """Substituted text counts towards the 4000 characters."""
        assert chat_message("{{content}}", Variables("", "b" * 5000)) == "b" * CHAT_MESSAGE_LENGTH

    @given(offset=st.integers(0, 12), run=st.text("&<>ab", min_size=1, max_size=12))
    def test_a_cut_never_splits_an_entity(self, offset: int, run: str) -> None:
        """At every offset, what is left out is whole entities, and no more than one entity is lost."""
        text = chat_message("{{content}}", Variables("", "x" * (CHAT_MESSAGE_LENGTH - offset) + run * 20))
        assert CHAT_MESSAGE_LENGTH - 4 <= len(text) <= CHAT_MESSAGE_LENGTH
        unescaped = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        again = unescaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert again == text
