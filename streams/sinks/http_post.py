"""`HttpPost`: batches of rows as JSON to an HTTP endpoint, at least once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.sinks.arguments import Limits, imported
from tidewheel.tasks.processing.api.sink import (
    RefusedRow,
    RowsRefused,
    Sink,
    SinkBatch,
    SinkTaskInfo,
)

_TYPES: Final = {"array": "application/json", "lines": "application/x-ndjson"}
#: Statuses that refuse the content: bad request, conflict, too large, unprocessable.
_REFUSING: Final = (400, 409, 413, 422)
_TEXT_MAX: Final = 200


class HttpAnswerError(Exception):
    """An answer that is neither a success nor a refusal of rows; the request is sent again.

    `retry_after_s`: seconds that the server asks to wait.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Row(msgspec.Struct, frozen=True, eq=False):
    body: bytes
    batch: SinkBatch
    row: int


class HttpPost(Sink):
    """Sends rows to an HTTP endpoint as JSON: at least once, in order within a partition.

    Each request has rows of one partition, and an `Idempotency-Key` of application, partition and
    offsets. After a crash rows may come again, in requests with other boundaries. Answers: 2xx
    accepts; 400, 409, 413 and 422 refuse: halves are sent down to single rows, which go to the
    production exception handler; anything else, and a time-out, is tried again, after `Retry-After`
    if the server sends it.

    Args:
        url: Address of the endpoint.
        headers: Headers of each request, or a function that returns them, such as for a token.
        to_body: `f(key, value)` -> a value for JSON. Default: an object of `key` and `value`.
        format: "array" of JSON, or "lines": one JSON object per line.
        refused_statuses: Statuses that refuse the content.
        timeout_s: Seconds of each request.

    >>> HttpPost("https://hooks.example.org/orders?token=x").target
    'HttpPost https://hooks.example.org/orders'
    """

    batch_rows = 500

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        to_body: Callable[[Any, Any], Any] = lambda key, value: {"key": key, "value": value},
        format: Literal["array", "lines"] = "array",  # noqa: A002 - the field's word
        refused_statuses: Collection[int] = _REFUSING,
        timeout_s: float = 30.0,
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        flush_every_ms: int | None = None,
        retries: int | None = None,
    ) -> None:
        self._httpx = imported("httpx2", "HttpPost", "http")
        Limits("HttpPost", batch_rows, batch_bytes, flush_every_ms, retries).apply(self)
        if format not in _TYPES:
            raise ConfigError(f'HttpPost: format={format!r} must be "array" or "lines"')
        if not str(url).startswith(("http://", "https://")):
            raise ConfigError("HttpPost: url must begin with http:// or https://")
        self._url = str(url)
        try:
            has_host = bool(self._httpx.URL(self._url).host)
        except self._httpx.InvalidURL:
            has_host = False  # the error quotes the address, which may have a login
        if not has_host:
            raise ConfigError(
                "HttpPost: url must be an address such as https://hooks.example.org/orders"
            )
        if not timeout_s > 0:
            raise ConfigError(f"HttpPost: timeout_s={timeout_s!r} must be a number above 0")
        self._headers = headers
        self._to_body = to_body
        self._format = format
        self._refused_statuses = frozenset(refused_statuses)
        self._timeout_s = timeout_s
        self._client: Any = None

    @property
    def target(self) -> str:
        """Return the address without its query, which may have a token, and without a login."""
        address = self._httpx.URL(self._url)
        return f"HttpPost {address.copy_with(query=None, fragment=None, username='', password='')}"

    def open(self, task: SinkTaskInfo) -> None:
        """Make the client; the endpoint stores no positions."""
        self._application = task.application_id
        self._rows: dict[TopicPartition, list[_Row]] = {}
        self._refused: list[RefusedRow] = []
        self._client = self._httpx.Client(timeout=self._timeout_s)

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the flush."""
        rows = self._rows.setdefault(TopicPartition(batch.topic, batch.partition), [])
        for row, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            try:
                body = msgspec.json.encode(self._to_body(key, value))
            except Exception as error:  # noqa: BLE001 - the user's function, or a value that JSON lacks
                self._refused.append(RefusedRow(batch, row, error))
            else:
                rows.append(_Row(body, batch, row))

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:  # noqa: ARG002 - the endpoint stores none
        """Send the rows of each partition."""
        refused = list(self._refused)
        for at, rows in self._rows.items():
            pending = [rows] if rows else []
            while pending:
                part = pending.pop()
                error = self._send(at, part)
                if error is None:
                    continue
                if len(part) == 1:
                    refused.append(RefusedRow(part[0].batch, part[0].row, error))
                else:
                    middle = len(part) // 2
                    pending += [part[middle:], part[:middle]]
        if refused:
            raise RowsRefused(refused)
        self._rows = {}

    def _send(self, at: TopicPartition, rows: Sequence[_Row]) -> ValueError | None:
        """Send one request; return the error if its content is refused."""
        first, last = (row.batch.offsets[row.row] for row in (rows[0], rows[-1]))
        given = self._headers() if callable(self._headers) else self._headers or {}
        headers = {
            "Content-Type": _TYPES[self._format],
            "Idempotency-Key": f"{self._application}-{at}-{first}-{last}",
            **given,
        }
        bodies = [row.body for row in rows]
        content = (
            b"[" + b",".join(bodies) + b"]"
            if self._format == "array"
            else b"\n".join(bodies) + b"\n"
        )
        answer = self._client.post(self._url, content=content, headers=headers)
        if answer.is_success:
            return None
        text = f"{self.target} answered {answer.status_code} {answer.reason_phrase}"
        if answer.status_code in self._refused_statuses:
            return ValueError(f"{text}: {answer.text[:_TEXT_MAX]}")
        raise HttpAnswerError(text, _seconds(answer.headers.get("Retry-After", "")))

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _seconds(retry_after: str) -> float:
    """Return the seconds of a `Retry-After`; 0 for a date or no header.

    >>> _seconds("3"), _seconds("Wed, 21 Oct 2015 07:28:00 GMT")
    (3.0, 0.0)
    """
    return float(retry_after) if retry_after.isdecimal() else 0.0
