"""The token is compared in constant time, as a digest, and nowhere else."""

import ast
import secrets
from pathlib import Path
from typing import Final

import pytest
from starlette.testclient import TestClient

from tidewheel.streams.dashboard.poller import GroupPoller
from tidewheel.streams.dashboard.web import build_app

_ROOT: Final = Path(__file__).parents[3]
#: The code that compares what somebody shows with what they must know.
_DOORS: Final = (
    *sorted((_ROOT / "streams" / "dashboard").rglob("*.py")),
    *sorted((_ROOT / "streams" / "web").rglob("*.py")),
    _ROOT / "streams" / "cli" / "commands" / "dashboard.py",
    _ROOT / "streams" / "kafka" / "admin" / "transaction_requests.py",
)
TOKEN: Final = "0123456789abcdef"  # noqa: S105 - of these tests
#: Words in the names of values that an attacker guesses.
_GUESSED: Final = ("token", "password", "secret", "signature", "proof")


def _client(token: str) -> TestClient:
    def away() -> None:
        raise AssertionError

    poller = GroupPoller(away, 1.0)  # type: ignore[arg-type] # is never polled
    return TestClient(build_app("shop", poller, token=token), base_url="http://localhost")


@pytest.mark.parametrize(
    "shown", ["", "0", TOKEN[:-1], TOKEN, TOKEN + "0", "x" * 10_000, "\u00e9" * 16]
)
@pytest.mark.parametrize("answer", [True, False])
def test_only_a_constant_time_comparison_of_equal_lengths_decides(
    shown: str, monkeypatch: pytest.MonkeyPatch, *, answer: bool
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return answer

    monkeypatch.setattr(secrets, "compare_digest", compare)
    headers = {b"authorization": f"Bearer {shown}".encode("latin-1")}
    code = _client(TOKEN).get("/api/status", headers=headers).status_code
    assert (code != 401) is answer
    assert [(len(one), len(other)) for one, other in compared] == [(32, 32)]
    assert TOKEN.encode() not in compared[0]


def test_no_guessed_value_is_compared_by_an_operator() -> None:
    found = {
        (str(path.relative_to(_ROOT)), ast.unparse(side))
        for path in _DOORS
        for side in _compared(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_the_rule_notices_each_kind_of_comparison() -> None:
    for text in ("shown == token", "self._token != x", "x == password.strip()"):
        assert list(_compared(ast.parse(text))), text
    for text in ("token is None", "kind == 'secret'", "compare_digest(token, other)"):
        assert not list(_compared(ast.parse(text))), text


def _compared(tree: ast.AST) -> list[ast.expr]:
    """Return the operands of all equality tests that are named like a guessed value."""
    return [
        side
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops)
        for side in (node.left, *node.comparators)
        if any(word in name for name in _names(side) for word in _GUESSED)
    ]


def _names(side: ast.expr) -> list[str]:
    return [
        name.lower()
        for node in ast.walk(side)
        for name in (getattr(node, "id", ""), getattr(node, "attr", ""))
    ]
