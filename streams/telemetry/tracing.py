"""Spans of batches, operators, commits and restores."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from tidewheel.streams.telemetry.guard import Guard, SpanEnder
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.restore.state_updater import RestoreEvent

NAME: Final = "tidewheel"

#: Most records of a batch whose contexts become links.
_LINKS_MAX: Final = 32
#: Most records whose headers are read to find them.
_READ_MAX: Final = 256


class HeaderGetter(Getter[Headers]):
    """Reads a context from a record's headers, as W3C Trace Context has them."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Return the values of a header, without those that are no text."""
        values = [
            value.decode("utf-8", "replace")
            for name, value in carrier
            if name.lower() == key and value is not None
        ]
        return values or None

    def keys(self, carrier: Headers) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier]


_GETTER: Final = HeaderGetter()


class Tracing:
    """Tracer of a process; it never raises, whatever the provider does."""

    def __init__(self, application_id: str, guard: Guard) -> None:
        self._application_id = application_id
        self._guard = guard
        self._tracer = trace.get_tracer(NAME)
        self._ender = SpanEnder(guard)

    def close(self) -> None:
        """End the spans that wait."""
        self._ender.close()

    def batch(
        self,
        task_id: str,
        source: str,
        batches: Sequence[RecordBatch],
        *,
        skipped: Callable[[], int],
        attaches: bool = True,
    ) -> "_Traced":
        """See `BatchTracer.batch`."""
        try:
            parent, links = _contexts(batches)
            first = batches[0]
            records = first.source
            topic = source if records is None or not records.topic else records.topic
            attributes: dict[str, Any] = {
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.destination.name": topic,
                "messaging.consumer.group.name": self._application_id,
                "messaging.batch.message_count": sum(map(len, batches)),
                "tidewheel.task": task_id,
                "tidewheel.source": source,
            }
            if records is not None and records.topic and len(first.rows):
                attributes["messaging.destination.partition.id"] = str(records.partition)
                attributes["messaging.kafka.offset"] = records.offsets[first.rows[0]]
            span = self._tracer.start_span(
                f"process {topic}",
                context=parent,
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=links,
            )
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(error)
            return _Traced(None, self._ender, self._guard, skipped)
        return _Traced(span, self._ender, self._guard, skipped, parent, attaches=attaches)

    def operator(self, name: str, records: int, *, skipped: Callable[[], int]) -> "_Traced":
        """See `BatchTracer.operator`."""
        try:
            span = self._tracer.start_span(name, attributes={"tidewheel.records": records})
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(error)
            return _Traced(None, self._ender, self._guard, skipped)
        return _Traced(span, self._ender, self._guard, skipped)

    def committed(self, slot: int, took_s: float) -> None:
        """Report a commit that has just ended."""
        self._ended("commit", took_s, {"tidewheel.slot": slot})

    def restored(self, event: RestoreEvent, took_s: float) -> None:
        """Report a restore that has just ended."""
        attributes: dict[str, Any] = {
            "messaging.destination.name": event.topic,
            "messaging.destination.partition.id": str(event.partition),
            "tidewheel.store": event.store,
            "tidewheel.records": event.restored,
        }
        self._ended(f"restore {event.store}", took_s, attributes)

    def _ended(self, name: str, took_s: float, attributes: dict[str, Any]) -> None:
        end_ns = time.time_ns()
        try:
            span = self._tracer.start_span(
                name,
                context=Context(),
                attributes={"messaging.consumer.group.name": self._application_id, **attributes},
                start_time=end_ns - int(took_s * 1e9),
            )
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(error)
        else:
            self._ender.end(span, end_ns)


class _Traced:
    """A span while a block runs; it is the current one for users' functions."""

    __slots__ = (
        "_attaches",
        "_ender",
        "_guard",
        "_parent",
        "_skipped",
        "_skipped_before",
        "_span",
        "_token",
    )

    def __init__(
        self,
        span: Span | None,
        ender: SpanEnder,
        guard: Guard,
        skipped: Callable[[], int],
        parent: Context | None = None,
        *,
        attaches: bool = True,
    ) -> None:
        self._span = span
        self._ender = ender
        self._guard = guard
        self._parent = parent
        self._attaches = attaches
        self._token: Any = None
        self._skipped = skipped
        self._skipped_before = skipped()

    def __enter__(self) -> bool:
        span = self._span
        if span is None:
            return False
        try:
            if self._attaches:
                self._token = context.attach(trace.set_span_in_context(span, self._parent))
            return span.is_recording()
        except Exception as error:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(error)
            return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_back: TracebackType | None,
    ) -> None:
        span = self._span
        if span is None:
            return
        try:
            if self._token is not None:
                context.detach(self._token)
            if kind is not None and kind is not GeneratorExit:
                # The error's text may quote a record.
                span.set_status(Status(StatusCode.ERROR, kind.__name__))
            elif (count := self._skipped() - self._skipped_before) > 0:
                span.set_status(Status(StatusCode.ERROR, f"{count} records were skipped"))
        except Exception as failure:  # noqa: BLE001 - logged; the worker continues
            self._guard.failed(failure)
        self._ender.end(span, time.time_ns())


def _contexts(batches: Sequence[RecordBatch]) -> tuple[Context, list[Link]]:
    """Return the context of a single record, or links to those of several."""
    if len(batches) == 1 and len(batches[0]) == 1:
        headers = batches[0].headers_of(0)
        return (propagate.extract(headers, Context(), _GETTER) if headers else Context()), []
    links: list[Link] = []
    left = _READ_MAX
    for batch in batches:
        for headers in () if batch.headers is None else batch.headers[:left]:
            left -= 1
            if not headers or len(links) == _LINKS_MAX:
                continue
            found = trace.get_current_span(
                propagate.extract(headers, Context(), _GETTER)
            ).get_span_context()
            if found.is_valid:
                links.append(Link(found))
    return Context(), links
