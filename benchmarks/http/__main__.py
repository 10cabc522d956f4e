"""Command line: `python -m benchmarks.http cost` and `queries`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.http import cost, queries
from tidewheel.testing import KafkaBroker


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http")
    parser.add_argument("what", choices=("cost", "queries"))
    parser.add_argument("--bootstrap-servers", help="default: a broker of its own")
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=int, default=5_000)
    options = parser.parse_args()
    with _servers(options.bootstrap_servers) as servers:
        rows = (
            cost.measure(servers, options.records, options.rounds)
            if options.what == "cost"
            else queries.measure(servers, options.seconds, options.clients, options.rate)
        )
    for row in rows:
        print(json.dumps(row))


@contextmanager
def _servers(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    with KafkaBroker() as broker:
        yield broker.bootstrap_servers


if __name__ == "__main__":
    main()
