"""Quix Streams' program of the suite `restore`: restores after a lost disk and prints the time.

Settings without an argument keep Quix Streams' defaults. After the recovery it sums its store and
prints one line of JSON.
"""

import functools
import json
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

# Not installed in the type checker's environment.
from quixstreams import Application, State  # type: ignore[import-not-found]
from quixstreams.state.recovery import RecoveryManager  # type: ignore[import-not-found]
from rocksdict import AccessType, Options, Rdict

DIGEST_MASK = (1 << 64) - 1


def keep_last(value: bytes, state: State) -> bytes:
    state.set("value", value)
    return value


def content(state_dir: Path) -> dict[str, int]:
    """Return the number of rows of all stores, and the sum of their checksums."""
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
    result: dict[str, Any] = {}
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
        result["seconds"] = time.monotonic() - began_s
        result["ready_s"] = time.monotonic() - begin_s
        threading.Thread(target=app.stop).start()

    RecoveryManager.do_recovery = timed
    app.run()
    print(json.dumps({**result, **content(Path(parameters["state_dir"]))}))


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
