"""Count words, and serve counts over HTTP from every process.

    tidewheel broker --port 9092 --topics lines:4
    python examples/word_count_service.py 8001      # in other terminals, as many as you like
    python examples/word_count_service.py 8002
    curl localhost:8001/kafka

Each process has the words of its own tasks, and forwards queries for others.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import urlopen

from tidewheel import HostInfo, KafkaStreams, StateStoreError, StreamsBuilder, StreamsConfig

config: dict[str, Any] = {"application_id": "word-count-service"}


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key_serde=str, value_serde=str)
    words = lines.flat_map_values(lambda line: line.lower().split())
    words.group_by(lambda word: word, key_serde=str, value_serde=str).count(store="counts")
    return builder


def answer(app: KafkaStreams, here: HostInfo, word: str) -> tuple[int, str]:
    """Return the HTTP status and the count of a word, from this process or its owner."""
    try:
        place = app.query_metadata_for_key("counts", word, str).active_host
        if place is not None and place != here:
            with urlopen(f"http://{place}/{quote(word)}", timeout=5) as reply:
                return 200, reply.read().decode()
        row = app.store("counts").get(word)
    except (StateStoreError, OSError):  # the word's task is moving
        return 503, "ask again"
    return 200, str(row.value if row else 0)


def main(port: int) -> None:
    here = HostInfo("localhost", port)
    app = KafkaStreams(topology().build(), StreamsConfig(**config, application_server=str(here)))

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(app, here, word=unquote(self.path[1:]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    Thread(target=ThreadingHTTPServer(here, Service).serve_forever, daemon=True).start()
    app.run()


if __name__ == "__main__":
    main(port=int(sys.argv[1]))
