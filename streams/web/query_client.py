"""`QueryClient`: interactive queries over HTTP."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

import msgspec

from tidewheel.streams.errors import (
    ConfigError,
    InvalidStateStoreError,
    QueryTimeoutError,
    StreamsError,
)
from tidewheel.streams.web.query_place import QueryPlace
from tidewheel.streams.web.query_request import Limits
from tidewheel.streams.web.query_text import BadQueryError, encoded
from tidewheel.streams.web.query_transfer import fetch_json

_BYTES_MAX: Final = 64 * 1024 * 1024
_OK: Final = 200
_TIMEOUT_MAX_S: Final = Limits().timeout_ms // 1000


class QueryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a store, as JSON has it.

    Attributes:
        timestamp: Of the record that set the value, ms since the epoch; None if the store has none.
        start: Start of the window or session.
        end: End of the window or session.
        valid_to: End of a version's validity; None for the latest.
        partition: The task's partition; None for a global store.

    >>> QueryRow(key="ann", value=3, timestamp=7, partition=0).value
    3
    """

    key: Any
    value: Any
    timestamp: int | None = None
    start: int | None = None
    end: int | None = None
    valid_to: int | None = None
    partition: int | None = None


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a query; iterable.

    Attributes:
        partitions: Who answered, by partition.
        truncated: The limit that ended the rows early: "rows", "bytes" or "time"; else None.
    """

    store: str
    rows: list[QueryRow]
    partitions: dict[str, QueryPlace]
    truncated: str | None = None

    def __iter__(self) -> Iterator[QueryRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class QueryClient:
    """Client of one process of an application, which forwards queries to the others.

    Keys of `str` and numbers are sent as they are, `bytes` as base64, other keys as JSON.

    Args:
        url: Address of a process, as "http://127.0.0.1:8080"; with a path if the queries are
            mounted there.
        token: The process's `http_token`.
        timeout_s: Time for an answer, at most 60.

    >>> def clicks(client: QueryClient, user: str) -> int:
    ...     row = client.get("clicks-per-user", user)
    ...     return 0 if row is None else row.value
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(f"QueryClient: {url!r} is no address such as http://127.0.0.1:8080")
        if not 0 < timeout_s <= _TIMEOUT_MAX_S:
            raise ConfigError(
                f"QueryClient: timeout_s={timeout_s!r} must be above 0 and at most {_TIMEOUT_MAX_S}"
            )
        self._tls = parts.scheme == "https"
        self._server = parts.netloc
        self._path = parts.path.rstrip("/")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s

    def stores(self) -> list[dict[str, Any]]:
        """Return the stores: name, kind, and the queries that read them."""
        stores: list[dict[str, Any]] = self._fetch("/stores", {})["stores"]
        return stores

    def get(
        self,
        store: str,
        key: Any,
        *,
        as_of: int | None = None,
        start: int | None = None,
        end: int | None = None,
        **options: Any,
    ) -> QueryRow | None:
        """Return the row of a key, or None.

        Args:
            as_of: Time of the version, in a versioned store; None: the latest.
            start: Start of the window or session.
            end: End of the session.
            options: As in `query`.

        Raises:
            StreamsError: As in `query`; or the row is larger than an answer may be.
        """
        times = {"as_of": as_of, "start": start, "end": end}
        result = self.query(store, "get", keys={"key": key}, times=times, **options)
        if result.truncated == "bytes":
            raise StreamsError(f"store {store}: the row of {key!r} exceeds the limit of an answer")
        return result.rows[0] if result.rows else None

    def range(
        self, store: str, lower: Any = None, upper: Any = None, **options: Any
    ) -> QueryResult:
        """Return rows with keys from `lower` to `upper`, inclusive; None is unbounded."""
        return self.query(store, "range", keys={"from_key": lower, "to_key": upper}, **options)

    def prefix(self, store: str, prefix: Any, **options: Any) -> QueryResult:
        """Return rows with keys that begin with a text, or with bytes."""
        return self.query(store, "prefix", keys={"prefix": prefix}, **options)

    def windows(
        self, store: str, key: Any, from_ms: int = 0, to_ms: int | None = None, **options: Any
    ) -> QueryResult:
        """Return a key's windows that start between two times, inclusive."""
        times = {"from": from_ms, "to": to_ms}
        return self.query(store, "windows", keys={"key": key}, times=times, **options)

    def sessions(
        self, store: str, key: Any, from_ms: int = 0, to_ms: int | None = None, **options: Any
    ) -> QueryResult:
        """Return a key's sessions that end at `from_ms` or later and start at `to_ms` or earlier."""
        times = {"from": from_ms, "to": to_ms}
        return self.query(store, "sessions", keys={"key": key}, times=times, **options)

    def versions(
        self, store: str, key: Any, from_ms: int = 0, to_ms: int | None = None, **options: Any
    ) -> QueryResult:
        """Return a key's versions that are valid between two times, newest first."""
        times = {"from": from_ms, "to": to_ms}
        return self.query(store, "versions", keys={"key": key}, times=times, **options)

    def query(
        self,
        store: str,
        kind: Literal["get", "range", "prefix", "windows", "sessions", "versions"],
        *,
        keys: Mapping[str, Any] | None = None,
        times: Mapping[str, int | None] | None = None,
        limit: int | None = None,
        stale: bool = False,
        max_lag: int | None = None,
        isolation_level: Literal["read_committed", "read_uncommitted"] | None = None,
        min_position: Mapping[str, int] | None = None,
        partitions: list[int] | None = None,
        reverse: bool = False,
    ) -> QueryResult:
        """Return the rows of any query.

        Args:
            limit: Most rows.
            stale: A copy may answer if the owner can't.
            max_lag: Most records that such a copy may be behind.
            min_position: Offsets that the answer must include, as "topic-partition": offset. It
                waits for them.

        Raises:
            InvalidStateStoreError: There is no such store, or a task is moving: ask again.
            QueryTimeoutError: No answer in time.
            BadQueryError: The query is wrong: a `StreamsError` and a `ValueError`.
            StreamsError: The query is not allowed, or a row can't be read.
        """
        position = (
            None
            if min_position is None
            else ",".join(f"{place}:{offset}" for place, offset in min_position.items())
        )
        options: dict[str, Any] = {
            **{name: _text(key) for name, key in (keys or {}).items() if key is not None},
            **(times or {}),
            "limit": limit,
            "stale": "true" if stale else None,
            "max_lag": max_lag,
            "isolation_level": isolation_level,
            "min_position": position,
            "partitions": None if partitions is None else ",".join(map(str, partitions)),
            "reverse": "true" if reverse else None,
            "timeout_ms": max(int(self._timeout_s * 1000), 1),
        }
        parameters = {name: str(value) for name, value in options.items() if value is not None}
        content = self._fetch(f"/stores/{quote(store, safe='')}/{kind}", parameters)
        return msgspec.convert(content, QueryResult)

    def _fetch(self, path: str, parameters: Mapping[str, str]) -> Any:
        try:
            reply = fetch_json(
                self._server,
                f"{self._path}{path}",
                parameters,
                self._headers,
                timeout_s=self._timeout_s + 1,
                bytes_max=_BYTES_MAX,
                tls=self._tls,
            )
        except TimeoutError as error:
            raise QueryTimeoutError(
                f"{self._server} did not answer in {self._timeout_s} s"
            ) from error
        except OSError as error:
            raise InvalidStateStoreError(f"{self._server} can't be reached: {error}") from error
        if reply.status == _OK and reply.fields is not None:
            return reply.fields
        text = "" if reply.fields is None else reply.fields.get("error", "")
        message = f"{self._server} answered {reply.status}: {text or 'no reason given'}"
        match reply.status:
            case 400:
                raise BadQueryError(message)
            case 404 | 503:
                raise InvalidStateStoreError(message)
            case 504:
                raise QueryTimeoutError(message)
            case _:
                raise StreamsError(message)


def _text(key: Any) -> str:
    """Return the text of a key in a URL.

    >>> _text("ann"), _text(7), _text(float("nan")), _text(b"a"), _text({"id": 1})
    ('ann', '7', 'NaN', 'YQ==', '{"id":1}')
    """
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return base64.b64encode(key).decode()
    return encoded(key).decode().strip('"')
