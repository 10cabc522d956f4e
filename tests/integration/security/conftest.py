"""One secured broker for the tests of each module."""

import secrets
from collections.abc import Iterator

import pytest

from tests.integration.security.secured_broker import SecuredBroker, secured_broker


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def application_id() -> str:
    return f"shop{secrets.token_hex(4)}"
