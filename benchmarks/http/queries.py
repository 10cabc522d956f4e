"""Rate and latency of queries beside processing, and the processing they cost."""

import multiprocessing
import random
import statistics
import threading
import time
from multiprocessing.queues import Queue
from typing import Any

from benchmarks.http.work import KEYS, Feed, make_topic, running, wait_for
from tidewheel import KafkaStreams
from tidewheel.web import QueryClient


def measure(servers: str, seconds: float, clients: int, rate: int) -> list[dict[str, Any]]:
    """Return a row without clients and one with them, at an input of `rate` records a second."""
    topic = make_topic(servers)
    warm = Feed(servers, topic)
    warm.send(KEYS * 2)
    warm.flush()
    with running(servers, topic, http_port=0, commit_interval_ms=100) as app:
        wait_for(app, KEYS * 2)
        while sum(1 for _ in app.store("counts").all()) < KEYS:  # the commit follows
            time.sleep(0.1)
        over = threading.Event()
        feeding = threading.Thread(target=_feed, args=(servers, topic, rate, over))
        feeding.start()
        try:
            return [_row(app, seconds, number) for number in (0, clients)]
        finally:
            over.set()
            feeding.join()


def _feed(servers: str, topic: str, rate: int, over: threading.Event) -> None:
    feed = Feed(servers, topic)
    begin_s, sent = time.monotonic(), 0
    while not over.wait(0.02):
        due = int((time.monotonic() - begin_s) * rate)
        feed.send(due - sent)
        sent = due
    feed.flush()


def _row(app: KafkaStreams, seconds: float, clients: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    answers: Queue[list[float]] = context.Queue()
    url = str(app.http_url)
    processes = [
        context.Process(target=_ask, args=(url, seconds, number, answers))
        for number in range(clients)
    ]
    for process in processes:
        process.start()
    before, begin_s = app.metrics()["process-total"], time.monotonic()
    if not processes:
        time.sleep(seconds)
    times = [value for _ in processes for value in answers.get(timeout=seconds + 120)]
    elapsed_s = time.monotonic() - begin_s
    for process in processes:
        process.join()
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
    return {
        "clients": clients,
        "queries_per_s": round(len(times) / seconds),
        "p50_ms": round(cuts[49] * 1000, 2),
        "p99_ms": round(cuts[98] * 1000, 2),
        "processed_per_s": round((app.metrics()["process-total"] - before) / elapsed_s),
        "lag": app.metrics()["records-lag"],
    }


def _ask(url: str, seconds: float, seed: int, answers: "Queue[list[float]]") -> None:
    client, chance, times = QueryClient(url), random.Random(seed), list[float]()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        begin_s = time.perf_counter()
        row = client.get("counts", str(chance.randrange(KEYS)))
        times.append(time.perf_counter() - begin_s)
        assert row is not None
    answers.put(times)
