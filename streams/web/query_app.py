"""Routes of interactive queries."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidewheel.streams.errors import (
    InvalidStateStoreError,
    QueryTimeoutError,
    StreamsError,
)
from tidewheel.streams.web.json_response import PROBLEM_HANDLERS, json_response, problem
from tidewheel.streams.web.local_queries import Answer, QueriedStore, UnknownStoreError
from tidewheel.streams.web.openapi import document
from tidewheel.streams.web.query_place import place_text
from tidewheel.streams.web.query_request import SHAPES, Limits, QueryRequest, parse_request
from tidewheel.streams.web.query_routing import Caller, QueryRouter
from tidewheel.streams.web.query_text import BadQueryError
from tidewheel.streams.worker.process_view import ProcessView

#: Queries that run at the same time, and those that may wait for them.
_RUNNING_MAX: Final = 8
_WAITING_MAX: Final = 64

_UNAVAILABLE: Final = 503

#: Most characters of one parameter.
_TEXT_MAX: Final = 64 * 1024

T = TypeVar("T")


class QueryRoutes:
    """Routes of interactive queries; `close` ends their threads.

    Args:
        is_announced: True if the member's address in the group leads to these routes without a
            prefix.
    """

    def __init__(
        self, view: ProcessView, limits: Limits | None = None, *, is_announced: bool = False
    ) -> None:
        self._view = view
        self._limits = limits or Limits()
        self._is_announced = is_announced
        self._router = QueryRouter(view)
        self._pool = ThreadPoolExecutor(_RUNNING_MAX, thread_name_prefix="tidewheel-query")
        self._unfinished = 0
        self.routes: list[BaseRoute] = [
            Route("/openapi.json", self._openapi),
            Route("/stores", self._stores),
            Route("/stores/{store}", self._store),
            *(
                Route(f"/stores/{{store}}/{kind}", partial(self._query, kind), methods=["GET"])
                for kind in SHAPES
            ),
        ]

    def close(self) -> None:
        """End the threads of queries, without waiting for running ones."""
        self._router.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _openapi(self, request: Request) -> Response:
        return json_response(document(request.scope.get("root_path", ""), self._limits))

    async def _stores(self, _: Request) -> Response:
        spec = self._view.application.spec
        names = [store.name for part in spec.subtopologies for store in part.stores]
        names += [entry.store.name for entry in spec.global_stores]
        return json_response({"stores": [self._described(name) for name in sorted(set(names))]})

    async def _store(self, request: Request) -> Response:
        name: str = request.path_params["store"]
        return await self._answered(lambda: json_response(self._described(name, with_tasks=True)))

    def _described(self, name: str, *, with_tasks: bool = False) -> dict[str, Any]:
        store = QueriedStore(self._view, name)
        spec = store.spec
        described: dict[str, Any] = {
            "name": name,
            "kind": spec.kind.value,
            "key": getattr(spec.key_serde, "name", ""),
            "value": getattr(spec.value_serde, "name", ""),
            "is_global": store.subtopology is None,
            "queries": [
                kind
                for kind, shapes in SHAPES.items()
                if any(spec.kind in shape.kinds for shape in shapes) and not spec.internal_rows
            ],
        }
        if with_tasks and store.subtopology is not None:
            here = store.roles(stale=True, max_lag=None)
            described["partitions"] = len(store.partitions)
            described["here"] = {place_text(task): served for task, served in sorted(here.items())}
        return described

    async def _query(self, kind: str, request: Request) -> Response:
        return await self._answered(lambda: self._run(kind, request))

    def _run(self, kind: str, request: Request) -> Response:
        parameters = _parameters(request)
        query = parse_request(
            request.path_params["store"],
            kind,
            parameters,
            self._limits,
            self._view.config.interactive_query_timeout_ms,
        )
        caller = Caller(
            prefix="" if self._is_announced else request.scope.get("root_path", ""),
            parameters=parameters,
            authorization=request.headers.get("authorization"),
        )
        return _rows_response(query, self._router.answer(query, caller))

    async def _answered(self, answer: Callable[[], Response]) -> Response:
        """Run a query in one of its threads; turn its error into a status."""
        try:
            return await self._in_thread(answer)
        except ValueError as error:
            return _problem(400, error)
        except UnknownStoreError as error:
            return _problem(404, error)
        except QueryTimeoutError as error:
            return _problem(504, error)
        except InvalidStateStoreError as error:
            return _problem(_UNAVAILABLE, error)
        except StreamsError as error:
            return _problem(500, error)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self._unfinished >= _RUNNING_MAX + _WAITING_MAX:
            raise InvalidStateStoreError(
                f"{self._unfinished} queries run or wait already; ask again"
            )
        self._unfinished += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        finally:
            self._unfinished -= 1


def queries_app(view: ProcessView, limits: Limits | None = None) -> Starlette:
    """Return the queries as an ASGI application of their own."""
    routes = QueryRoutes(view, limits)

    @asynccontextmanager
    async def close_at_end(_: Starlette) -> AsyncGenerator[None]:
        yield
        routes.close()

    app = Starlette(
        routes=routes.routes, lifespan=close_at_end, exception_handlers=PROBLEM_HANDLERS
    )
    app.router.redirect_slashes = False  # Redirects would echo parts of the request.
    return app


def _parameters(request: Request) -> dict[str, str]:
    if not _is_text(request.scope.get("query_string", b"")):
        raise BadQueryError("a parameter is no UTF-8")
    pairs = request.query_params.multi_items()
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise BadQueryError("a parameter is given twice")
    if any(len(text) > _TEXT_MAX for text in parameters.values()):
        raise BadQueryError(f"a parameter has more than {_TEXT_MAX:,} characters")
    return parameters


def _is_text(query: bytes) -> bool:
    """Return true for a query string in UTF-8; Starlette would replace other bytes."""
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows_response(query: QueryRequest, answer: Answer) -> Response:
    return json_response(
        {
            "store": query.store,
            "rows": [orjson.Fragment(row) for row in answer.rows],
            "partitions": answer.partitions,
            "truncated": answer.truncated,
        }
    )


def _problem(status_code: int, error: Exception) -> Response:
    headers = {"retry-after": "1"} if status_code == _UNAVAILABLE else {}
    return problem(status_code, str(error), headers)
