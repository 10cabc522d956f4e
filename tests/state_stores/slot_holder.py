"""Process that locks a slot, prints it as JSON and holds it until its stdin ends."""

import json
import sys
from pathlib import Path

from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.state_directory import StateDirectory


def main() -> None:
    try:
        directory = StateDirectory.acquire(Path(sys.argv[1]), "app")
    except StateStoreError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201 - read by the test
        return
    print(json.dumps({"slot": directory.slot, "member_id": directory.member_id}), flush=True)  # noqa: T201 - same
    sys.stdin.read()


if __name__ == "__main__":
    main()
