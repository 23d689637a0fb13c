"""The cases that every receiver's function decides alike: ``python -m tests.receivers.cases --write``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.docs import generated

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "signature-cases.json"
COMMAND = "python -m tests.receivers.cases --write"

TIMESTAMP: Final = "x-service-webhook-timestamp"
SIGNATURE: Final = "x-service-webhook-signature"
STAMP: Final = 1_700_000_000
SECRET: Final = "s3cret"
BODY: Final = b'{"a":1}'

Header = tuple[str, str]


def mac(timestamp: str, body: bytes = BODY, secret: str = SECRET, digest: str = "sha256") -> str:
    """Makes the HMAC in hex."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, digest).hexdigest()


def signed(timestamp: str = str(STAMP), body: bytes = BODY, secret: str = SECRET) -> list[Header]:
    """Makes the two headers of a request that is signed right, whatever its timestamp is."""
    return [(TIMESTAMP, timestamp), (SIGNATURE, f"v1,{mac(timestamp, body, secret)}")]


def case(
    name: str,
    headers: list[Header],
    *,
    verified: bool,
    body: bytes = BODY,
    secrets: object = (SECRET,),
    now: int = STAMP,
    row: str = "",
) -> dict[str, Any]:
    """Describes one request, what a receiver has to say of it, and the row of the page about mistakes, if it is one."""
    return {
        "name": name,
        "secrets": secrets,
        "now": now,
        "headers": headers,
        "body": base64.b64encode(body).decode(),
        "verified": verified,
        **({"row": row} if row else {}),
    }


def good() -> Iterator[dict[str, Any]]:
    """Requests that are the sender's."""
    yield case("as sent", signed(), verified=True)
    yield case("empty body", signed(body=b""), body=b"", verified=True)
    invalid = b"\xff\xfe\x80{}\xc3("
    yield case("body that is not UTF-8", signed(body=invalid), body=invalid, verified=True)
    binary = bytes(range(256))
    yield case("body of all bytes", signed(body=binary), body=binary, verified=True)
    ends = b'{"a":1}\r\n\0\n'
    yield case("body that ends with line breaks and NUL", signed(body=ends), body=ends, verified=True)
    mark = b'\xef\xbb\xbf{"a":1}'
    yield case("body with a byte order mark", signed(body=mark), body=mark, verified=True)
    yield case("body of 5000 bytes", signed(body=b"a" * 5000), body=b"a" * 5000, verified=True)
    for name, secret in {
        "secret in UTF-8": "schlüssel-鍵-🔑",
        "secret with spaces at its ends": " s3cret ",
        "secret with a NUL and a line break": "a\0b\nc",
        "secret longer than a block of SHA-256": "k" * 200,
        "secret that looks like base64": "whsec_c2VjcmV0",
    }.items():
        yield case(name, signed(secret=secret), secrets=(secret,), verified=True)
    capitals = [(name.upper(), value) for name, value in signed()]
    yield case("names of headers in capitals", capitals, verified=True)
    others = [("content-type", "application/json"), *signed(), ("x-service-webhook-id", "evt_1"), ("x", "1")]
    yield case("among other headers", others, verified=True)
    fields = ("headers", "isBase64Encoded", "multiValueHeaders", "asgi", "entries", "env", "body")
    yield case(
        "among headers that are named as fields of requests",
        [*signed(), *((each, "true") for each in fields)],
        verified=True,
    )
    yield case("300 seconds old", signed(), now=STAMP + 300, verified=True)
    yield case("300 seconds ahead", signed(), now=STAMP - 300, verified=True)
    yield case("zeros before the timestamp", signed(f"00{STAMP}"), verified=True)
    yield case("timestamp of 15 digits", signed("9" * 15), now=10**15 - 1, verified=True)
    yield case("timestamp 0", signed("0"), now=0, verified=True)


def rotated() -> Iterator[dict[str, Any]]:
    """Several secrets."""
    yield case("first of three secrets", signed(), secrets=(SECRET, "b", "c"), verified=True)
    yield case("second of three secrets", signed(), secrets=("a", SECRET, "c"), verified=True)
    yield case("last of three secrets", signed(), secrets=("a", "b", SECRET), verified=True)
    yield case("behind an empty secret", signed(), secrets=("", SECRET), verified=True)
    yield case("none of three secrets", signed(), secrets=("a", "b", "c"), verified=False)
    yield case("no secret", signed(), secrets=(), verified=False)
    yield case("signed with the empty secret", signed(secret=""), secrets=("",), verified=False)
    yield case(
        "signed with the empty secret, among others", signed(secret=""), secrets=(SECRET, ""), verified=False
    )
    yield case("another secret in capitals", signed(secret=SECRET.upper()), secrets=(SECRET,), verified=False)
    yield case("part of the secret", signed(secret="s3cre"), verified=False)


def forms() -> Iterator[dict[str, Any]]:
    """One secret, and what is neither one nor several: each request is signed with what a language may take for one."""
    for name, secret in {
        "one secret": SECRET,
        "one secret of one letter": "w",
        "one `whsec_` secret": "whsec_c2U=",
    }.items():
        yield case(f"{name}, not in a list", signed(secret=secret), secrets=secret, verified=True)
        if secret != "w":
            yield case(f"first letter of {name}", signed(secret=secret[0]), secrets=secret, verified=False)
    copied = f"{SECRET}\n"
    yield case("line break behind one secret", signed(), secrets=copied, verified=False)
    yield case("line break behind one of two", signed(), secrets=(copied, "b"), verified=False)
    yield case("one empty secret", signed(secret=""), secrets="", verified=False)
    for other, texts in {
        "null": ["", "null", "None"],
        "false": ["", "0", "false"],
        "true": ["1", "true", "True"],
        "0": ["", "0"],
        "5": ["5", "\5"],
        "{}": [""],
        '{"s3cret": "b"}': [SECRET, "b"],
        "[null]": ["", "null", "None"],
        "[false]": ["", "0", "false"],
        "[true]": ["1", "true", "True"],
        "[53]": ["5", "53"],
        "[[]]": ["", "Array"],
        '[["s3cret"]]': [SECRET, "s"],
        '["s3cret", null]': [SECRET, ""],
    }.items():
        for text in texts:
            name = f"secrets {other}, signed with {json.dumps(text)}"
            yield case(name, signed(secret=text), secrets=json.loads(other), verified=False)


def changed() -> Iterator[dict[str, Any]]:
    """Requests that were changed on their way, or made up."""
    yield case("changed body", signed(), body=b'{"a":2}', verified=False)
    yield case("body written again", signed(), body=b'{"a": 1}', verified=False)
    yield case("longer body", signed(), body=BODY + b"\n", verified=False)
    yield case("body taken away", signed(), body=b"", verified=False)
    stamp, signature = signed()
    yield case("later timestamp", [(TIMESTAMP, str(STAMP + 1)), signature], verified=False)
    moved = [(TIMESTAMP, f"{STAMP}.1"), (SIGNATURE, f"v1,{mac(str(STAMP), b'1.a')}")]
    yield case("start of the body moved into the timestamp", moved, body=b"a", verified=False)
    yield case("301 seconds old", signed(), now=STAMP + 301, verified=False)
    yield case("301 seconds ahead", signed(), now=STAMP - 301, verified=False)
    yield case("a year old", signed(), now=STAMP + 31_536_000, verified=False)
    yield case("no header", [], verified=False)
    yield case("no signature", [stamp], verified=False)
    yield case("no timestamp", [signature], verified=False)
    yield case("empty signature", [stamp, (SIGNATURE, "")], verified=False)
    yield case("empty timestamp", signed(""), now=0, verified=False)
    yield case("signature twice", [stamp, signature, signature], verified=False)
    wrong = (SIGNATURE, "v1," + "0" * 64)
    yield case("wrong signature before the right one", [stamp, wrong, signature], verified=False)
    yield case("wrong signature behind the right one", [stamp, signature, wrong], verified=False)
    capitals = (SIGNATURE.upper(), signature[1])
    yield case("signature twice, once in capitals", [stamp, signature, capitals], verified=False)
    yield case("timestamp twice", [stamp, stamp, signature], verified=False)
    other = (TIMESTAMP, str(STAMP + 1))
    yield case("two timestamps", [stamp, other, signature], verified=False)


def signatures() -> Iterator[dict[str, Any]]:
    """Signatures that are not one."""
    stamp, (_, right) = signed()
    whole, hexadecimal = right, right.removeprefix("v1,")
    sha1, sha512 = (mac(str(STAMP), digest=name) for name in ("sha1", "sha512"))
    plain = hashlib.sha256(SECRET.encode() + f"{STAMP}.".encode() + BODY).hexdigest()
    base = base64.b64encode(bytes.fromhex(hexadecimal)).decode()
    for name, value in {
        "hex in capitals": f"v1,{hexadecimal.upper()}",
        "one digit wrong at the start": "v1," + ("1" if hexadecimal[0] != "1" else "2") + hexadecimal[1:],
        "one digit wrong at the end": whole[:-1] + ("1" if whole[-1] != "1" else "2"),
        "one digit too few": whole[:-1],
        "one digit too many": f"{whole}0",
        "first half only": whole[: 3 + 32],
        "twice in one value": f"{whole}, {whole}",
        "without v1": hexadecimal,
        "only v1": "v1,",
        "v2": f"v2,{hexadecimal}",
        "V1": f"V1,{hexadecimal}",
        "v1=": f"v1={hexadecimal}",
        "letters that are no hex": "v1," + "g" * 64,
        "base64": f"v1,{base}",
        "space before": f" {whole}",
        "space behind the comma": f"v1, {hexadecimal}",
        "NUL behind": f"{whole}\0",
        "line break behind": f"{whole}\n",
        "not ASCII": "v1," + "é" * 64,
        "digits of full width": f"v1,{hexadecimal.translate({48 + n: 0xFF10 + n for n in range(10)})}",
        "a kilobyte": f"v1,{hexadecimal * 16}",
        "SHA-1": f"v1,{sha1}",
        "SHA-512": f"v1,{sha512}",
        "SHA-256 without HMAC": f"v1,{plain}",
        "HMAC of the body alone": f"v1,{hmac.new(SECRET.encode(), BODY, 'sha256').hexdigest()}",
    }.items():
        yield case(f"signature: {name}", [stamp, (SIGNATURE, value)], verified=False)


def timestamps() -> Iterator[dict[str, Any]]:
    """Timestamps that are not one, each signed right: a language that reads them as a number would say yes."""
    for name, text in {
        "plus": f"+{STAMP}",
        "space before": f" {STAMP}",
        "space behind": f"{STAMP} ",
        "tab before": f"\t{STAMP}",
        "line break behind": f"{STAMP}\n",
        "NUL behind": f"{STAMP}\0",
        "decimals": f"{STAMP}.0",
        "exponent": "17e8",
        "hexadecimal": hex(STAMP),
        "underscores": "1_700_000_000",
        "commas": "1,700,000,000",
        "letters behind": f"{STAMP}s",
        "letters": "now",
        "not a number": "NaN",
        "twice in one value": f"{STAMP}, {STAMP}",
        "Arabic digits": "".join(chr(0x660 + int(digit)) for digit in str(STAMP)),
        "digits of full width": "".join(chr(0xFF10 + int(digit)) for digit in str(STAMP)),
        "a superscript digit": f"{STAMP}²"[1:],
        "as a date": "Tue, 14 Nov 2023 22:13:20 GMT",
        "milliseconds": f"{STAMP}000",
    }.items():
        yield case(f"timestamp: {name}", signed(text), verified=False)
    yield case("timestamp: minus", signed("-1"), now=0, verified=False)
    yield case("timestamp: 16 digits", signed("1" + "0" * 15), now=10**15, verified=False)
    for name, number in {
        "2^63": 1 << 63,
        "2^64 and the time": (1 << 64) + STAMP,
        "infinite as a double": 10**400,
    }.items():
        yield case(f"timestamp: {name}", signed(str(number)), verified=False)


SENT: Final = b'{ "total": 1.10, "note": "\xff" }'
PLAIN: Final = {"b": {"d": 1, "c": [{"f": True, "e": "Zoë"}]}, "a": 2}
SORTED: Final = {"a": 2, "b": {"c": [{"e": "Zoë", "f": True}], "d": 1}}
ENVELOPE: Final = {
    "type": "experience.logic_action.webhook",
    "version": 1,
    "data": dict.fromkeys(("entityId", "occurredAt", "agentId", "experienceId", "source", "actionIndex"), "x"),
}
STANDARD: Final = "whsec_c2VjcmV0cw=="
LAST: Final = "another secret, or changed body"


def compact(value: object, **options: Any) -> bytes:
    """Writes JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, **options).encode()


def mistake(
    row: str, name: str, *, sent: bytes = SENT, secret: str = SECRET, has_length: bool = True, **received: Any
) -> dict[str, Any]:
    """Describes a request that was signed right, what a receiver gives to its function of it, and the page's row."""
    headers = [*signed(body=sent, secret=secret), *([("content-length", str(len(sent)))] if has_length else [])]
    given = {"headers": headers, "body": sent, "secrets": secret, **received}
    return case(f"{row}: {name}", verified=row == "verifies", row=row, **given)


def mistakes() -> Iterator[dict[str, Any]]:
    """What developers of receivers do, by the rows of the page about signatures that do not verify."""
    yield mistake("verifies", "as sent")
    yield mistake("verifies", "one of two secrets", secrets=["of another node", SECRET])
    row = "body parsed or decoded"
    yield mistake(row, "written again", body=b'{"total":1.1,"note":"\xff"}')
    yield mistake(row, "to text and back", body=SENT.decode(errors="replace").encode())
    for name, (sent, body) in {
        "keys in another order": (compact(PLAIN), compact(SORTED)),
        "keys of an envelope in another order": (compact(ENVELOPE), compact(ENVELOPE, sort_keys=True)),
        "other blanks": (compact(PLAIN), json.dumps(PLAIN, ensure_ascii=False).encode()),
        "blanks taken away, and keys in another order": (json.dumps(PLAIN, indent=2).encode(), compact(SORTED)),
        "blanks taken away": (json.dumps(PLAIN, ensure_ascii=False).encode(), compact(PLAIN)),
        "four blanks taken away": (json.dumps(PLAIN, indent=4).encode(), compact(PLAIN)),
        "escapes": (compact(PLAIN), json.dumps(PLAIN, separators=(",", ":")).encode()),
        "in base64": (SENT, base64.b64encode(SENT)),
        "a line break added": (SENT, SENT + b"\r\n"),
        "a line break taken away": (SENT + b"\n", SENT),
    }.items():
        yield mistake(row, f"{name}, no length", sent=sent, body=body, has_length=False)
    yield mistake(row, "keys in another order, of the same length", sent=compact(PLAIN), body=compact(SORTED))
    yield mistake("body already read", "a middleware read it", body=b"")
    yield mistake("body already read", "no length", body=b"", has_length=False)
    for name, (secret, secrets) in {
        "a line break": (SECRET, f"{SECRET}\n"),
        "quotes": (SECRET, f'"{SECRET}"'),
        "typographic quotes": (SECRET, f"“{SECRET}”"),
        "quotes that became typographic": ('it\'s "s3cret" x', "it’s “s3cret” x"),
        "a byte order mark": (SECRET, f"\ufeff{SECRET}"),
        "a lost =": ("c2VjcmV0c2U=", "c2VjcmV0c2U"),
        "one of two =": (STANDARD, STANDARD[:-1]),
        "two lost =": (STANDARD, STANDARD[:-2]),
        "a + that became a blank": ("c2Vj+mV0", "c2Vj mV0"),
        "a + that is still encoded": ("c2Vj+mV0", "c2Vj%2BmV0"),
    }.items():
        yield mistake("secret changed by copying", name, secret=secret, secrets=secrets)
    for name in ("••••••", "s3c••••", "whsec_****************", "…cret", "xxxxxxxx", "s3c..."):
        yield mistake("masked secret", name, secrets=name)
    yield mistake("decoded secret", "no whsec_", secret=STANDARD, secrets=STANDARD.removeprefix("whsec_"))
    yield mistake("decoded secret", "the text in it", secret=STANDARD, secrets="secrets")
    yield mistake("no secret here", "an empty one", secrets="")
    yield mistake("no secret here", "none of several", secrets=[])
    yield mistake("not signed", "no signature", headers=signed(body=SENT)[:1])
    yield mistake("headers removed", "no timestamp", headers=[("content-length", str(len(SENT)))])
    yield mistake("headers doubled", "twice", headers=signed(body=SENT) * 2)
    joined = [(name, f"{value}, {value}") for name, value in signed(body=SENT)]
    yield mistake("headers doubled", "joined", headers=joined)
    yield mistake("headers doubled", "the signature joined", headers=[signed(body=SENT)[0], joined[1]])
    yield mistake("headers doubled", "the timestamp joined", headers=[joined[0], signed(body=SENT)[1]])
    yield mistake("clock or queue", "301 seconds late", now=STAMP + 301)
    yield mistake("clock or queue", "ten minutes early", now=STAMP - 600)
    yield mistake(LAST, "the secret", secrets="of another node")
    yield mistake(LAST, "the body", body=SENT.replace(b"1.10", b"1.20"))
    yield mistake(LAST, "a value of JSON", sent=compact(PLAIN), body=compact({**SORTED, "a": 3}))


def every() -> list[dict[str, Any]]:
    """Makes all cases."""
    return [*good(), *rotated(), *forms(), *changed(), *signatures(), *timestamps(), *mistakes()]


def render() -> str:
    """Makes the file: a case a line."""
    lines = ",\n".join("  " + json.dumps(each, ensure_ascii=True) for each in every())
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    sys.exit(generated.run(COMMAND, __doc__, {PAGE: render}))
