"""Certificates over the years, on a clock of the test's own: every client always trusts every replica."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509 import verification

from broker.admission.certificates import (
    CA_LIFE,
    PROPAGATION,
    SERVING_LIFE,
    SKEW,
    StoredCertificates,
    UnusableCertificates,
    read,
    turn,
    write,
)

NAME = "capacity-broker.ns.svc"
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def trusts(bundle: bytes, kept: StoredCertificates, at: datetime, name: str = NAME) -> bool:
    """Whether a client with this bundle accepts the served certificate."""
    assert kept.serving is not None
    store = verification.Store(x509.load_pem_x509_certificates(bundle))
    verifier = verification.PolicyBuilder().store(store).time(at).build_server_verifier(x509.DNSName(name))
    try:
        verifier.verify(kept.serving.certificate, [])
    except verification.VerificationError:
        return False
    return True


class CertificateUses:
    """The served certificates and the bundles of their clients, each from its first to its last use.

    A chain is valid from one moment to another. A client that trusts it at the first and at the last use
    trusts it at every use between.
    """

    def __init__(self) -> None:
        self.spans: dict[tuple[bytes, int], tuple[StoredCertificates, datetime, datetime]] = {}

    def at(self, now: datetime, *pairs: tuple[bytes, StoredCertificates]) -> None:
        for bundle, of in pairs:
            assert of.serving is not None
            key = bundle, of.serving.certificate.serial_number
            _, first, last = self.spans.get(key, (of, now, now))
            self.spans[key] = of, min(first, now), max(last, now)

    def end(self) -> None:
        for (bundle, _), (of, *span) in self.spans.items():
            for at in span:
                assert trusts(bundle, of, at), at


def test_a_peer_one_hour_behind_is_trusted_and_trusts_for_three_years() -> None:
    now = START
    kept = turn(StoredCertificates(), names=[NAME], now=now)
    served, signed, most = set(), set(), 0
    uses = CertificateUses()
    while now < START + 3 * CA_LIFE:
        was, kept = kept, turn(kept, names=[NAME], now=now)
        assert kept.serving is not None
        served.add(kept.serving.certificate.serial_number)
        signed.add(kept.serving.certificate.issuer)
        most = max(most, len(kept.authorities))
        # Both ways: an API server with the previous bundle, and a replica that serves the previous
        # certificate.
        uses.at(now, (kept.bundle, kept), (was.bundle, kept), (kept.bundle, was))
        # An API server with a slow clock.
        uses.at(now - SKEW, (kept.bundle, kept))
        now += 7 * HOUR
    uses.end()
    assert len(uses.spans) > len(served)
    assert 12 <= len(served) <= 20
    assert (len(signed), most) == (5, 2)


def test_certificates_are_unchanged_before_renewal_is_due() -> None:
    kept = turn(StoredCertificates(), names=[NAME], now=START)
    assert turn(kept, names=[NAME], now=START + SERVING_LIFE / 2) is kept
    again = read(write(kept))
    assert turn(again, names=[NAME], now=START + SERVING_LIFE / 2) is again
    assert write(again) == write(kept)


def test_a_new_authority_signs_only_after_api_servers_can_have_its_bundle() -> None:
    kept = turn(StoredCertificates(), names=[NAME], now=START)
    late = START + CA_LIFE * 2 / 3 + HOUR
    updated = turn(kept, names=[NAME], now=late)
    first, second = updated.authorities
    assert first == kept.authorities[0]
    assert updated.serving is not None
    assert updated.serving.certificate.issuer == first.certificate.subject
    renewed = StoredCertificates(updated.authorities, None)
    soon, later = (turn(renewed, names=[NAME], now=late + after) for after in (HOUR / 2, PROPAGATION))
    assert soon.serving is not None
    assert later.serving is not None
    assert soon.serving.certificate.issuer == first.certificate.subject
    assert later.serving.certificate.issuer == second.certificate.subject


def test_certificates_that_expired_while_the_broker_was_down_are_replaced_at_once() -> None:
    kept = turn(StoredCertificates(), names=[NAME], now=START)
    now = START + 2 * CA_LIFE
    assert not trusts(kept.bundle, kept, now)
    kept = turn(kept, names=[NAME], now=now)
    assert len(kept.authorities) == 1
    assert trusts(kept.bundle, kept, now)


def test_releases_of_different_names_do_not_take_the_certificate_from_each_other() -> None:
    kept = turn(StoredCertificates(), names=["old.ns.svc"], now=START)
    both = turn(kept, names=["new.ns.svc"], now=START + HOUR)
    assert turn(both, names=["old.ns.svc"], now=START + HOUR) is both
    assert trusts(kept.bundle, both, START + HOUR, "old.ns.svc")
    assert trusts(kept.bundle, both, START + HOUR, "new.ns.svc")
    assert not trusts(kept.bundle, both, START + HOUR, "other.ns.svc")


def test_an_ip_address_is_a_valid_name() -> None:
    kept = turn(StoredCertificates(), names=["127.0.0.1"], now=START)
    assert turn(kept, names=["127.0.0.1"], now=START) is kept


@pytest.mark.parametrize("wrong", ["missing", "not base64", "no pem", "another's key", "no key"])
def test_an_unusable_secret_is_an_error_that_names_the_problem(wrong: str) -> None:
    data = write(turn(StoredCertificates(), names=[NAME], now=START))
    other = write(turn(StoredCertificates(), names=[NAME], now=START))
    words = {
        "missing": ("tls.key", None, "'tls.key' is missing"),
        "not base64": ("ca.crt", "?", "Unable to load|base64|PEM"),
        "no pem": ("ca.crt", b64encode(b"hello").decode(), "Unable to load|PEM"),
        "another's key": ("tls.key", other["tls.key"], "CN=capacity-broker webhook is another certificate's"),
        "no key": ("ca.key", "", "1 certificate with 0 keys"),
    }
    name, value, message = words[wrong]
    if value is None:
        del data[name]
    else:
        data[name] = value
    with pytest.raises(UnusableCertificates, match=message):
        read(data)
