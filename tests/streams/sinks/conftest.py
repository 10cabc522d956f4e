"""Fixtures of sink tests: a PostgreSQL for each module."""

from collections.abc import Iterator

import pytest

from tests.integration.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server
