"""What is said of a webhook's body before it is saved."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes.checks import (
    chat_problems,
    webhook_problems,
)
from flowactions_plugin.nodes.template import as_json_of_same_length, interpolate_json
from flowactions_plugin.nodes.template_check import json_fault, malformed_tokens
from tests.plugin.nodes.problems import URL, told, webhook

MEANINGFUL = ["{{userId}}", "{{content}}", "{{x}}", "{{", "00", '{"', '":', "null"]


class TestBody:
    @pytest.mark.parametrize(
        ("body", "line", "column"),
        [
            ("nope", 1, 1),
            ('{"a": 1 "b": 2}', 1, 9),
            ('{"a": {{userId}} "b": 2}', 1, 18),
            ('{"a": {{content}},\n "é": {{userId}} x}', 2, 18),
            ('{"user": {{userId}},\n  "text": "{{content}}"\n  "more": 1}', 3, 3),
            ('{"a": {{user}}}', 1, 7),
            ("{'a': 1}", 1, 2),
            ('{"😀": tru}', 1, 7),
            ('{\n\n"a": "never closed\n}', 3, 19),
            ('{"a": "never closed', 1, 7),
            ('{"a": 1}\n}', 2, 1),
            ('{"a": [NaN]}', 1, 8),
            ("[{{userId}}{{content}}]", 1, 12),
            ('"\\{{userId}}"', 1, 2),
            ('"\\u00{{userId}}"', 1, 3),
            ("\ufeff{}", 1, 1),
        ],
    )
    def test_the_first_error_is_where_the_author_has_it(self, body: str, line: int, column: int) -> None:
        """Line and column count from 1, in characters, in the text as it was written; variables are no error."""
        (problem,) = webhook(webhookBody=body)
        assert (problem.path, problem.code, problem.severity) == (("webhookBody",), "invalid_body", "error")
        assert (problem.line, problem.column) == (line, column)
        assert f"line {line}, column {column}" in problem.message

    @pytest.mark.parametrize(
        ("body", "line", "column", "hint"),
        [
            ('{"a": {{userId}}, "b": {{content}', 1, 24, "{{content} is not a variable: write {{content}}."),
            ('{\n  "user": {{userId\n}', 2, 11, "{{userId is not a variable: write {{userId}}."),
            ('{"a": {userId}}', 1, 7, "{userId} is not a variable: write {{userId}}."),
            ('{"a": ${content}}', 1, 7, "${content} is not a variable: write {{content}}."),
            ("{{USERID}", 1, 1, "{{USERID} is not a variable: write {{userId}}."),
        ],
    )
    def test_a_variable_with_too_few_braces_is_named(
        self, body: str, line: int, column: int, hint: str
    ) -> None:
        """It is told first; the place is where it begins, and not the brace that a reader of JSON stumbles over."""
        (problem,) = webhook(webhookBody=body)
        assert (problem.code, problem.line, problem.column) == ("invalid_body", line, column)
        assert problem.message == f"{hint} The body is not valid JSON in line {line}, column {column}."

    def test_a_body_that_is_nested_too_deeply_is_an_error_without_a_place(self) -> None:
        """What no reader can say the place of has none."""
        deep = 100 * sys.getrecursionlimit()
        (problem,) = webhook(webhookBody="[" * deep + "]" * deep)
        assert (problem.code, problem.line) == ("invalid_body", None)

    @given(
        st.lists(
            st.sampled_from([*'"\\{}[]:,a1u \n0.-+\t\u201c\u201d', "'", *MEANINGFUL]),
            max_size=12,
        ).map("".join),
        st.text(max_size=5),
        st.text(max_size=5),
    )
    @settings(max_examples=500)
    def test_the_text_is_valid_exactly_when_every_result_is(
        self, text: str, user_id: str, content: str
    ) -> None:
        """The check of a template says what rendering it with any values says, and keeps every position."""
        same, _ = as_json_of_same_length(text)
        assert len(same) == len(text)
        try:
            interpolate_json(text, {"userId": user_id, "content": content})
            is_valid = True
        except BodyInvalid:
            is_valid = False
        assert (json_fault(text) is None) == is_valid

    @pytest.mark.parametrize("escape", ["\\", "\\u", "\\u0", "\\u00", "\\u004", "\\\\\\u00"])
    @pytest.mark.parametrize("value", ["n", "0041", "41", "1", ""])
    def test_a_value_completes_no_escape(self, escape: str, value: str) -> None:
        """An escape before a variable is wrong whatever the value is, so check and walk agree."""
        text = f'["{escape}{{{{content}}}}"]'
        with pytest.raises(BodyInvalid):
            interpolate_json(text, {"userId": "", "content": value})
        assert json_fault(text) is not None
        assert json_fault(text.replace(escape, "\\\\" + escape[:0])) is None

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ('{"a": "{{email}}"}', [("{{email}}", 1, 8)]),
            ('{"a": "{{ userId }}"}', [("write {{userId}}", 1, 8)]),
            (
                '{"a": "{{userid}}",\n"b": "{{email}} {{email}}"}',
                [("write {{userId}}", 1, 8), ("{{email}}", 2, 7)],
            ),
            ('{"{{other}}": 1}', [("{{other}}", 1, 3)]),
            ('{"a": {{userId}}, "b": "{{content}}", "c": {"d": {}}}', []),
        ],
    )
    def test_what_looks_like_a_variable_and_is_none_is_a_warning(
        self, body: str, expected: list[tuple[str, int, int]]
    ) -> None:
        """It is sent as it stands; each is told once, with its place."""
        problems = webhook(webhookBody=body)
        assert [(each.code, each.severity) for each in problems] == [("unknown_token", "warning")] * len(
            expected
        )
        assert [(each.line, each.column) for each in problems] == [
            (line, column) for _, line, column in expected
        ]
        assert all(text in each.message for (text, *_), each in zip(expected, problems, strict=True))

    @pytest.mark.parametrize(
        ("text", "said", "column"),
        [
            ("by {userId}", "{userId} is not a variable: write {{userId}}", 4),
            ("by ${userId}", "${userId} is not a variable: write {{userId}}", 4),
            ("by {{userId}", "{{userId} is not a variable: write {{userId}}", 4),
            ("by {{userId", "{{userId is not a variable: write {{userId}}", 4),
            ("{ CONTENT }!", "{ CONTENT } is not a variable: write {{content}}", 1),
            ("{{name", "{{name is not closed", 1),
            ("{{userId}} {{name}, {{name}", "{{name is not closed", 12),
        ],
    )
    def test_a_variable_with_too_few_braces_is_a_warning(self, text: str, said: str, column: int) -> None:
        """It is sent as it stands, in a body, a header and a message alike; each is told once, with its place."""
        found = [
            *webhook(webhookBody=json.dumps(text)),
            *webhook(webhookHeaders=[{"key": "x-a", "value": text}]),
            *chat_problems({"chatChannelId": "C1", "chatMessageText": text}),
        ]
        assert [(each.code, each.severity, each.column) for each in found] == [
            ("malformed_token", "warning", column + 1),  # behind the quotation mark
            ("malformed_token", "warning", column),
            ("malformed_token", "warning", column),
        ]
        assert all(said in each.message for each in found)

    @pytest.mark.parametrize(
        "text", ["{{{userId}}}", "{{userId}}{{content}}", "{content: 1}", "{{}}", "contents {x}", "{{#if x}}"]
    )
    def test_other_braces_are_text(self, text: str) -> None:
        """What nobody can have meant as a variable is no problem of this kind."""
        found = webhook(webhookBody=json.dumps(text))
        assert [each for each in found if each.code == "malformed_token"] == []

    def test_braces_are_found_in_time_in_proportion_to_the_text(self) -> None:
        """Whatever stands there: the check of a body of a mebibyte ends."""
        for hostile in ("{" * 500_000, "{ " * 250_000, "{" + " " * 500_000, "{{a" * 160_000, "${" * 250_000):
            assert len(list(malformed_tokens(hostile))) <= 1

    @pytest.mark.parametrize(("body", "column"), [('{"{{userId}}": 1}', 3), ("{ {{userId}}: 1}", 3)])
    def test_a_variable_in_a_key_is_a_warning(self, body: str, column: int) -> None:
        """Keys are left alone, so it is sent as it stands."""
        (problem,) = webhook(webhookBody=body)
        assert told([problem]) == [("webhookBody", "token_not_substituted", "warning")]
        assert (problem.line, problem.column) == (1, column)

    @pytest.mark.parametrize("method", ["GET", "head", " Get "])
    def test_a_body_that_the_method_drops_is_a_warning(self, method: str) -> None:
        """GET and HEAD are sent without a body, whatever stands there."""
        for body in ("{}", "not json", 5):
            assert told(webhook(webhookMethod=method, webhookBody=body)) == [
                ("webhookBody", "body_dropped", "warning")
            ]
        assert webhook(webhookMethod=method, webhookBody=" ") == []

    def test_a_body_above_the_limit_is_an_error_and_one_near_it_a_warning(self) -> None:
        """The limit holds for the template; with long values, a result may get above it."""
        config = {"webhookUrl": URL, "webhookBody": '"{{content}}"'}
        assert told(webhook_problems(config, 12)) == [("webhookBody", "body_too_large", "error")]
        assert told(webhook_problems(config, 13)) == [("webhookBody", "body_may_be_too_large", "warning")]
        assert webhook_problems(config, 5000) == ()
