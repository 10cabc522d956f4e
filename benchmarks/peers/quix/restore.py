"""Quix Streams' side of the suite `restore`: an application that has lost its disk, and says how long it took to be back.

Arguments are NAME=VALUE pairs, the same for every peer. When it has recovered it adds up its store, prints one line of
JSON, and ends. It runs in an environment of its own, without Tidewheel. What no argument names keeps Quix Streams' own
default.
"""

import functools
import json
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

# Not installed where our types are checked: it has an environment of its own.
from quixstreams import Application, State  # type: ignore[import-not-found]
from quixstreams.state.recovery import RecoveryManager  # type: ignore[import-not-found]
from rocksdict import AccessType, Options, Rdict

DIGEST_MASK = (1 << 64) - 1


def keep_last(value: bytes, state: State) -> bytes:
    """Keep the last value of the key."""
    state.set("value", value)
    return value


def content(state_dir: Path) -> dict[str, int]:
    """Return how many rows all stores have, and the sum of their checksums."""
    rows, digest = 0, 0
    for current in state_dir.rglob("CURRENT"):
        families = Rdict.list_cf(str(current.parent), Options(raw_mode=True))
        database = Rdict(
            str(current.parent),
            options=Options(raw_mode=True),
            column_families={name: Options(raw_mode=True) for name in families},
            access_type=AccessType.read_only(),
        )
        for key, value in database.items():
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            rows += 1
            digest += zlib.crc32(key + value)
        database.close()
    return {"rows": rows, "digest": digest & DIGEST_MASK}


def main(parameters: dict[str, str]) -> None:
    """Restore, tell, end."""
    told: dict[str, Any] = {}
    app = Application(
        broker_address=parameters["bootstrap_servers"],
        consumer_group=parameters["application_id"],
        state_dir=parameters["state_dir"],
        auto_offset_reset="earliest",
        loglevel="WARNING",
    )
    records = app.topic(
        parameters["input_topic"], key_deserializer="bytes", value_deserializer="bytes"
    )
    app.dataframe(records).apply(keep_last, stateful=True)
    do_recovery = RecoveryManager.do_recovery
    begin_s = time.monotonic()

    @functools.wraps(do_recovery)
    def timed(self: Any) -> None:
        began_s = time.monotonic()
        do_recovery(self)
        told["seconds"] = time.monotonic() - began_s
        told["ready_s"] = time.monotonic() - begin_s
        threading.Thread(target=app.stop).start()

    RecoveryManager.do_recovery = timed
    app.run()
    print(json.dumps({**told, **content(Path(parameters["state_dir"]))}))


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
