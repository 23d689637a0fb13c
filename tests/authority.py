"""An authority for certificates, and a receiver's certificate from it."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


def inner_authority(
    directory: Path,
    *,
    host: str = "127.0.0.1",
    bits: int = 0,
    purpose: x509.ObjectIdentifier | None = None,
    days: int = 1,
    strict: bool = True,
) -> tuple[str, ssl.SSLContext]:
    """Make an authority in PEM, and the TLS context of a server that it vouches for.

    Args:
        directory: where the server's chain is written.
        host: an address or a name that the certificate is for.
        bits: of the server's key, if it is one of RSA.
        purpose: what the certificate is for; ``None``: anything.
        days: until when it is valid.
        strict: whether the authority says what its key may be used for, as RFC 5280 asks.
    """
    now = dt.datetime.now(dt.UTC)
    keys: list[Any] = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    if bits:
        keys[1] = rsa.generate_private_key(65537, bits)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("inner", "127.0.0.1")]
    made = []
    for number, (key, name) in enumerate(zip(keys, names, strict=True)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(number + 1)
            .not_valid_before(now - dt.timedelta(days=9))
            .not_valid_after(now + dt.timedelta(days=days if number else 1))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False
            )
        )
        if number == 0 and not strict:
            pass
        elif number == 0:
            usage = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            builder = builder.add_extension(
                x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True
            )
        else:
            named = x509.IPAddress(ipaddress.ip_address(host)) if host[-1].isdigit() else x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([named]), critical=False)
            if purpose is not None:
                builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        made.append(builder.sign(keys[0], hashes.SHA256()))
    pem = [each.public_bytes(serialization.Encoding.PEM) for each in made]
    secret = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = directory / "server.pem"
    chain.write_bytes(secret + pem[1])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # What is too weak for us, a receiver may have.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(chain)
    return pem[0].decode(), context
