"""The kit signs in with altered credentials. Nobody was given them, so a host must refuse them all."""

from __future__ import annotations

import base64
import json

from flowactions_conformance.kit.support.credentials import altered, unreadable


def token_part(value: dict[str, str]) -> str:
    """Encode a header or the claims of a JWT."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def signed_in(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


JWT = f"{token_part({'alg': 'HS256'})}.{token_part({'sub': 'ada'})}.c2lnbmVk"
OTHERS = f"{token_part({'alg': 'HS256'})}.{token_part({'sub': 'bob'})}.b3RoZXJz"


def test_each_part_of_a_signed_token_is_altered() -> None:
    """The kit changes characters and letter case, exchanges parts with another person's token, and removes the signature."""
    forms = {how: headers["authorization"] for how, headers in altered(signed_in(JWT), signed_in(OTHERS))}
    header, claims, signature = JWT.split(".")
    others = OTHERS.split(".")
    assert all(form.startswith("Bearer ") for form in forms.values())
    assert not {JWT, OTHERS} & {form.removeprefix("Bearer ") for form in forms.values()}
    assert forms["with upper and lower case swapped"] == f"Bearer {JWT.swapcase()}"
    assert forms["with another one's part 2 in it"] == f"Bearer {header}.{others[1]}.{signature}"
    assert forms["with another one's part 3 in it"] == f"Bearer {header}.{claims}.{others[2]}"
    assert forms["with an empty last part"] == f"Bearer {header}.{claims}."
    assert forms["without its last part"] == f"Bearer {header}.{claims}"
    unsigned = forms["as a JWT whose header says that it is not signed"].removeprefix("Bearer ")
    assert json.loads(base64.urlsafe_b64decode(unsigned.split(".")[0] + "==")) == {"alg": "none", "typ": "JWT"}
    assert unsigned.endswith(f".{claims}.")


def test_a_form_that_may_mean_the_same_is_not_tried() -> None:
    """A host may ignore the letter case of a hexadecimal id. A value without letters and digits has no other form."""
    forms = dict(altered({"x-key": "00ff-AB"}, {"x-key": "11ee-CD"}))
    assert "with upper and lower case swapped" not in forms
    assert forms["joined with another one"] == {"x-key": "00ff-AB11ee-CD"}
    assert list(altered({"x-key": "--"}, {"x-key": "=="})) == []


def test_what_two_people_have_in_common_is_left_as_it_is() -> None:
    """A cookie with the theme signs nobody in."""
    own, other = {"cookie": "theme=dark; session=abcdefgh"}, {"cookie": "theme=dark; session=ijklmnop"}
    forms = dict(altered(own, other))
    assert forms["without its last quarter"] == {"cookie": "theme=dark; session=abcdef"}
    assert all(headers["cookie"].startswith("theme=dark; session=") for headers in forms.values())
    assert dict(unreadable(own))["the credential 'garbage'"] == {"cookie": "theme=garbage; session=garbage"}
