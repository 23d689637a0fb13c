"""What is said of a webhook's body before it is saved."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes import chat_message
from flowactions_plugin.nodes.faults import unknown_tokens
from flowactions_plugin.nodes.template import check_json, interpolate_json, split_json
from flowactions_plugin.settings.model import Settings
from tests.plugin.nodes.problems import told, webhook

MEANINGFUL = ["{{userId}}", "{{content}}", "{{x}}", "{{", "00", '{"', '":', "null"]


class TestBody:
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
        """What rendering says of a template is so with any values, and every position is kept."""
        assert len(split_json(text).plain) == len(text)
        with suppress(BodyInvalid):
            check_json(interpolate_json(text, {"userId": user_id, "content": content}).encode())
            return
        with pytest.raises(BodyInvalid):
            interpolate_json(text, {"userId": "", "content": ""})

    def test_what_looks_like_a_variable_is_told_once_with_its_place(self) -> None:
        """It is sent as it stands, in a body, a header and a message alike; what nobody can have meant as one is text."""
        for text, columns in {
            "by {{email}}, {{userid}} {{email}}": [4, 15],
            "by {{ userId }}": [4],
            "by ${userId}": [4],
            "by {{userId}": [4],
            "by {{userId": [4],
            "{ CONTENT }!": [1],
            "{{name": [1],
            "{{userId}} {{name}, {{name}": [12],
            "{{{userId}}} {{userId}}{{content}} {content: 1} {{}} contents {x} ${{userId}}": [],
        }.items():
            found = [
                webhook(webhookBody=json.dumps(text)),
                webhook(webhookHeaders=[{"key": "x-a", "value": text}]),
                chat_message.problems({"chatChannelId": "C1", "chatMessageText": text}),
            ]
            assert {each.code for problems in found for each in problems} <= {"unknown_token"}
            quoted = [column + 1 for column in columns]
            assert [[each.column for each in problems] for problems in found] == [quoted, columns, columns]

    def test_braces_are_found_in_time_in_proportion_to_the_text(self) -> None:
        """Whatever stands there: the check of a body of a mebibyte ends."""
        for hostile in ("{" * 500_000, "{ " * 250_000, "{" + " " * 500_000, "{{a" * 160_000, "${" * 250_000):
            assert len(list(unknown_tokens(hostile))) <= 1

    @pytest.mark.parametrize("method", ["GET", "head", " Get "])
    def test_a_body_that_the_method_drops_is_a_warning(self, method: str) -> None:
        """GET and HEAD are sent without a body, whatever stands there."""
        for body in ("{}", "not json", 5):
            assert told(webhook(webhookMethod=method, webhookBody=body)) == [
                ("webhookBody", "body_dropped", "warning")
            ]
        assert webhook(webhookMethod=method, webhookBody=" ") == []

    def test_a_body_above_the_limit_is_an_error(self) -> None:
        """The limit holds for the template, too."""
        for limit, expected in ((12, [("webhookBody", "body_too_large", "error")]), (13, [])):
            assert told(webhook(Settings(max_body_bytes=limit), webhookBody='"{{content}}"')) == expected
