"""The webhook's own CA and serving certificate, and the times when the next ones are due.

Invariant: a client with the present bundle, or with the bundle of an hour ago, trusts every replica that
has read the Secret within the hour. So a new CA is made long before the old one ends, and is in the bundle
for an hour before it signs. The old one stays in the bundle to its end. A serving certificate keeps the
names of the one before, so that releases with different names do not replace each other's. Contents of a
certificate: RFC 5280; Go, and so the API server, reads subject alternative names only.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.text import counted

CA_LIFE: Final = timedelta(days=365)
SERVING_LIFE: Final = timedelta(days=90)
RENEWED: Final = 3  # replaced if less than this part of its life is left
PROPAGATION: Final = timedelta(hours=1)
SKEW: Final = timedelta(minutes=10)  # an API server's clock may be behind

Data = Mapping[str, str]
_KEY: Final = re.compile(rb"-----BEGIN PRIVATE KEY-----.*?-----END PRIVATE KEY-----\n", re.DOTALL)


class UnusableCertificates(ValueError):
    """A Secret without such certificates; the text has the problem."""


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def ends(self) -> datetime:
        return self.certificate.not_valid_after_utc

    @property
    def issued_at(self) -> datetime:
        return self.certificate.not_valid_before_utc + SKEW

    def due(self, life: timedelta, now: datetime) -> bool:
        return self.ends - now < life / RENEWED


@dataclass(frozen=True, slots=True)
class StoredCertificates:
    """`authorities` oldest first; `serving` is signed by one of them."""

    authorities: tuple[Pair, ...] = ()
    serving: Pair | None = None

    @property
    def bundle(self) -> bytes:
        return b"".join(_pem(authority) for authority in self.authorities)


def turn(kept: StoredCertificates, *, names: Sequence[str], now: datetime) -> StoredCertificates:
    """The certificates to keep now; `kept` itself if nothing is due."""
    authorities = tuple(authority for authority in kept.authorities if authority.ends > now)
    if not authorities or authorities[-1].due(CA_LIFE, now):
        authorities = (*authorities, _authority(now))
    serving = kept.serving
    known = _named(serving) if serving is not None else set()
    if (
        serving is None
        or serving.due(SERVING_LIFE, now)
        or not known.issuperset(names)
        or not any(_signed(serving, authority) for authority in authorities)
    ):
        propagated = [authority for authority in authorities if now - authority.issued_at >= PROPAGATION]
        serving = _serving((propagated or authorities[:1])[-1], sorted(known.union(names)), now)
    if (authorities, serving) == (kept.authorities, kept.serving):
        return kept
    return StoredCertificates(authorities, serving)


def read(data: Data) -> StoredCertificates:
    """Reads the pair from a Secret's data. Raises Unusable."""
    try:
        held = {name: b64decode(data[name]) for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
        authorities = _pairs(held["ca.crt"], held["ca.key"])
        (serving,) = _pairs(held["tls.crt"], held["tls.key"])
    except KeyError as error:
        raise UnusableCertificates(f"{error} is missing") from error
    except ValueError as error:
        raise UnusableCertificates(str(error)) from error
    return StoredCertificates(authorities, serving)


def write(kept: StoredCertificates) -> dict[str, str]:
    """Writes it as a Secret's data; `ca.crt` is the bundle."""
    assert kept.serving is not None
    held = {
        "ca.crt": kept.bundle,
        "ca.key": b"".join(_key(authority) for authority in kept.authorities),
        "tls.crt": _pem(kept.serving),
        "tls.key": _key(kept.serving),
    }
    return {name: b64encode(value).decode() for name, value in held.items()}


def chain(kept: StoredCertificates) -> tuple[bytes, bytes]:
    """Certificate and key to serve with, as PEM."""
    assert kept.serving is not None
    return _pem(kept.serving), _key(kept.serving)


def _pairs(certificates: bytes, keys: bytes) -> tuple[Pair, ...]:
    parsed = x509.load_pem_x509_certificates(certificates)
    loaded = [serialization.load_pem_private_key(text, None) for text in _KEY.findall(keys)]
    if len(parsed) != len(loaded):
        raise UnusableCertificates(
            f"{counted(len(parsed), 'certificate')} with {counted(len(loaded), 'key')}"
        )
    pairs = []
    for certificate, key in zip(parsed, loaded, strict=True):
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise UnusableCertificates(
                f"the key of {certificate.subject.rfc4514_string()} is another certificate's"
            )
        pairs.append(Pair(certificate, key))
    return tuple(pairs)


def _authority(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"capacity-broker webhook CA of {now:%Y-%m-%d}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    return _certificate(name, name, key, key, usage, x509.BasicConstraints(True, 0), now, now + CA_LIFE, [])


def _serving(signer: Pair, names: Sequence[str], now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    more: list[x509.ExtensionType] = [
        x509.SubjectAlternativeName([_alternative(name) for name in names]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    ]
    usage, limits = _usage(digital_signature=True), x509.BasicConstraints(False, None)
    ends = min(now + SERVING_LIFE, signer.ends)
    subject, issuer = _name("capacity-broker webhook"), signer.certificate.subject
    return _certificate(subject, issuer, key, signer.key, usage, limits, now, ends, more)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    usage: x509.KeyUsage,
    limits: x509.BasicConstraints,
    now: datetime,
    ends: datetime,
    more: Sequence[x509.ExtensionType],
) -> Pair:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - SKEW)
        .not_valid_after(ends.astimezone(UTC))
        .add_extension(limits, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def _usage(**given: bool) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: given.get(name, False) for name in every})


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _named(pair: Pair) -> set[str]:
    alternatives = pair.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in alternatives}


def _signed(pair: Pair, by: Pair) -> bool:
    try:
        pair.certificate.verify_directly_issued_by(by.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pem(pair: Pair) -> bytes:
    return pair.certificate.public_bytes(serialization.Encoding.PEM)


def _key(pair: Pair) -> bytes:
    return pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
