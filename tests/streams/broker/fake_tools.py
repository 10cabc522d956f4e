"""Fake java and mvn: shell scripts for a test's PATH."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

JAVA_17 = 'openjdk version "17.0.9" 2023-10-17'
JAVA_8 = 'java version "1.8.0_392"'
JAVA_11 = 'openjdk version "11.0.22" 2024-01-16'


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_java(path: Path, says: str = JAVA_17, body: str = "exit 3") -> Path:
    """Create a java with a version, which runs `body`."""
    return script(path, f"if [ \"$1\" = -version ]; then echo '{says}' >&2; exit 0; fi\n{body}")


def fake_mvn(path: Path, *, serves: Path, private: Path | None = None, before: str = "") -> Path:
    """Create an mvn that copies `serves` and logs its runs in `<path>.runs`.

    For a fetch with its own local repository it copies `private` instead, if given.
    """
    return script(
        path,
        f"""
echo "$@" >> '{path}.runs'
out=; from='{serves}'
for argument in "$@"; do case "$argument" in
  -DoutputDirectory=*) out=${{argument#-DoutputDirectory=}} ;;
  -Dmaven.repo.local=*) from='{private or serves}' ;;
esac; done
{before}
/bin/mkdir -p "$out" && /bin/cp "$from"/*.jar "$out"
""",
    )


def runs(tool: Path) -> list[str]:
    file = tool.with_name(f"{tool.name}.runs")
    return file.read_text().splitlines() if file.exists() else []


@contextmanager
def answering_server(*answers: bytes) -> Iterator[str]:
    """Send one answer per connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)
        assert not thread.is_alive()
