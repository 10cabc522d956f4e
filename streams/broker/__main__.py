"""Checks and fetches the needs of the development broker, for a Makefile.

    python -m tidewheel.streams.broker --check            prints the sources of Java and Kafka
    python -m tidewheel.streams.broker --missing-extras   prints `java`, `spark`, `java,spark` or nothing
    python -m tidewheel.streams.broker --fetch            fetches Kafka's jars now; a later start is quick

Exit codes: 0: nothing is missing (with --missing-extras: always); 1: something is missing, or the
fetch failed.
"""

import argparse
import sys

from tidewheel.state_stores.errors import StreamsError
from tidewheel.streams.broker.jars import DEFAULT_VERSION, JarCache
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.broker.needs import Needs, find_needs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tidewheel.streams.broker",
        description="Check or fetch the needs of the development broker.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="print the sources of Java and Kafka")
    action.add_argument("--missing-extras", action="store_true", help="print the extras to install")
    action.add_argument("--fetch", action="store_true", help="fetch or repair Kafka's jars now")
    parser.add_argument("--kafka", default=DEFAULT_VERSION, metavar="VERSION")
    options = parser.parse_args(arguments)
    try:
        if options.fetch:
            JarCache(options.kafka).ensure(find_java, verify=True)
            return 0
        needs = find_needs(options.kafka)
    except StreamsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.missing_extras:
        sys.stdout.write(f"{','.join(needs.missing_extras)}\n")
        return 0
    sys.stdout.write(describe(needs))
    return 1 if needs.missing_extras else 0


def describe(needs: Needs) -> str:
    if needs.java is None:
        java = f"missing: {needs.java_problem}"
    else:
        java = f"{needs.java.version} at {needs.java.executable} (from {needs.java.origin})"
    jars = {
        "cache": f"fetched, in {needs.jars_folder}",
        "Maven": "not fetched yet; Maven is here and will fetch it (45 MB)",
        "Ivy": "not fetched yet; PySpark's Ivy is here and will fetch it (45 MB)",
    }.get(
        needs.jars_from or "",
        "missing, and neither Maven nor PySpark's Ivy is here to fetch it (45 MB)",
    )
    lines = [f"Java: {java}", f"Kafka {needs.version}: {jars}"]
    if needs.missing_extras:
        lines.append(f"run: pip install 'tidewheel[{','.join(needs.missing_extras)}]'")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
