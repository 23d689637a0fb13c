"""What is said of a value that has the wrong form."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from flowactions_plugin.http.problems import error_message


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (str, 7, "must be text"),
        (str | None, 7, "must be text or null"),
        (int, "7", "must be a whole number"),
        (float, "7", "must be a number"),
        (bool, 0, "must be true or false"),
        (list[str], {}, "must be a list"),
        (Inner, 7, "must be an object"),
        (Annotated[int, Meta(ge=1)], 0, "must be at least 1"),
        (Annotated[float, Meta(lt=2.5)], 3.0, "must be less than 2.5"),
        (Annotated[str, Meta(max_length=3)], "four", "must have at most 3 characters"),
        (Annotated[str, Meta(min_length=1)], "", "must have at least 1 characters"),
        (Annotated[list[int], Meta(max_length=1)], [1, 2], "must have at most 1 items"),
        (Annotated[str, Meta(pattern="^a$")], "b", "does not have the right form"),
        (Literal["a", "b"], "c", "is none of the values that are known"),
        (datetime, "soon", "must be a date and time with time zone such as 2030-01-31T12:00:00Z"),
        (Annotated[datetime, Meta(tz=True)], "2030-01-01T00:00:00", "must be a date and time with time zone"),
        (Inner, {"name": "a", "more": 1}, "has no field more"),
        (Inner, {}, "needs the field name"),
    ],
)
def test_the_words_name_no_type_of_python(kind: Any, value: object, said: str) -> None:
    """They are made of what the decoder says of the value."""
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(value, kind)
    assert error_message(str(refused.value).partition(" - at ")[0]).startswith(said)
