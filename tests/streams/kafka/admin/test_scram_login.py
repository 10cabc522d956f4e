"""The login of the requests that librdkafka lacks: RFC 7677's example, and forged servers."""

import base64

import pytest

from tidewheel.streams.kafka.admin.transaction_requests import _Scram

_NONCE = "rOprNGfwEbeRWgbNEkqO"
_CHALLENGE = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
_SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture
def scram() -> _Scram:
    made = _Scram("sha256", "user", "pencil")
    made._nonce, made._bare = _NONCE, f"n=user,r={_NONCE}"
    return made


def test_the_example_of_the_rfc(scram: _Scram) -> None:
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    last = scram.last(_CHALLENGE).decode()
    assert last.endswith(",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    scram.check(f"v={_SIGNATURE}".encode())


@pytest.mark.parametrize("forged", [base64.b64encode(bytes(32)).decode(), "", _SIGNATURE[4:]])
def test_a_server_that_does_not_know_the_password_is_refused(scram: _Scram, forged: str) -> None:
    scram.last(_CHALLENGE)
    with pytest.raises(ValueError, match="signature"):
        scram.check(f"v={forged}".encode())


@pytest.mark.parametrize("answer", [b"", b"e=other-error"])
def test_an_answer_without_a_signature_is_refused(scram: _Scram, answer: bytes) -> None:
    scram.last(_CHALLENGE)
    with pytest.raises((ValueError, LookupError)):
        scram.check(answer)


@pytest.mark.parametrize("rounds", [b"1", b"4095", b"-4096", b"2147483647"])
def test_too_few_and_too_many_rounds_are_refused(scram: _Scram, rounds: bytes) -> None:
    with pytest.raises(ValueError, match="rounds"):
        scram.last(_CHALLENGE.replace(b"i=4096", b"i=" + rounds))


def test_another_nonce_is_refused(scram: _Scram) -> None:
    with pytest.raises(ValueError, match="nonce"):
        scram.last(_CHALLENGE.replace(b"r=rOpr", b"r=rOpR"))
