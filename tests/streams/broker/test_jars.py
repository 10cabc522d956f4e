"""The cache of jars: filled once, verified, repaired, safe for two processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.streams.broker.fake_tools import fake_java, fake_mvn, runs, script
from tidewheel.streams.broker.broker_errors import BrokerError, FetchError, UnknownVersionError
from tidewheel.streams.broker.jar_lock import JarLock
from tidewheel.streams.broker.jars import JarCache, cache_dir, fetched_bytes
from tidewheel.streams.broker.java import Java, find_java
from tidewheel.streams.broker.resolvers import FetchRequest

VERSION = "4.77.0"


class Shop:
    """A registry, a cache, and tools on a separate PATH."""

    def __init__(self, folder: Path) -> None:
        self.serves = folder / "registry"
        self.serves.mkdir()
        for name in ("kafka_2.13", "kafka-clients", "log4j"):
            (self.serves / f"{name}-{VERSION}.jar").write_bytes(name.encode() * 100)
        self.path = folder / "bin"
        self.mvn = fake_mvn(self.path / "mvn", serves=self.serves)
        fake_java(self.path / "java")
        self.root = folder / "cache"
        self.lock = JarLock.of_folder(self.serves)

    def cache(self) -> JarCache:
        return JarCache(VERSION, root=self.root, lock=self.lock)

    @property
    def clients(self) -> Path:
        return self.root / "kafka" / VERSION / f"kafka-clients-{VERSION}.jar"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = Shop(tmp_path)
    monkeypatch.setenv("PATH", str(shop.path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("TIDEWHEEL_IVY_JAR", raising=False)
    return shop


def _no_java() -> Java:
    raise AssertionError("no Java is needed when nothing has to be fetched")


def test_jars_are_fetched_once(shop: Shop) -> None:
    """The second start needs neither Maven nor Java."""
    first = shop.cache().ensure(find_java)
    second = shop.cache().ensure(_no_java)
    assert first == second
    assert [path.name for path in first] == [jar.name for jar in shop.lock.jars]
    assert len(runs(shop.mvn)) == 1
    assert sorted(path.name for path in (shop.root / "kafka").iterdir()) == [
        VERSION,
        f"{VERSION}.lock",
    ]


def test_a_truncated_jar_is_named_and_fetched_again(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.cache().ensure(find_java)
    untouched = shop.root / "kafka" / VERSION / f"log4j-{VERSION}.jar"
    before = untouched.stat().st_ino
    shop.clients.write_bytes(b"kafka")
    shop.cache().ensure(find_java)
    assert f"kafka-clients-{VERSION}.jar is truncated (5 bytes instead of 1300)" in caplog.text
    assert shop.clients.read_bytes() == b"kafka-clients" * 100
    assert untouched.stat().st_ino == before
    assert len(runs(shop.mvn)) == 2


def test_a_corrupt_jar_of_the_right_size_is_detected_by_the_check(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.cache().ensure(find_java)
    shop.clients.write_bytes(b"X" * 1300)
    shop.cache().ensure(_no_java)
    assert shop.clients.read_bytes() == b"X" * 1300
    shop.cache().ensure(find_java, verify=True)
    assert f"kafka-clients-{VERSION}.jar is corrupt" in caplog.text
    assert shop.clients.read_bytes() == b"kafka-clients" * 100


def test_a_version_without_a_built_in_list_gets_one(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    JarCache(VERSION, root=shop.root).ensure(find_java)
    assert "kafka-clients" in (shop.root / "kafka" / VERSION / "jars.sha256").read_text()
    shop.clients.unlink()
    JarCache(VERSION, root=shop.root).ensure(find_java)
    assert f"kafka-clients-{VERSION}.jar is missing" in caplog.text
    assert shop.clients.exists()


def test_wrong_jars_are_never_put_into_the_cache(shop: Shop) -> None:
    (shop.serves / f"kafka-clients-{VERSION}.jar").write_bytes(b"Y" * 1300)
    with pytest.raises(FetchError) as failure:
        shop.cache().ensure(find_java)
    assert f"fetched by Maven, twice, but kafka-clients-{VERSION}.jar is corrupt" in str(
        failure.value
    )
    assert not shop.clients.parent.exists()
    assert [path.name for path in (shop.root / "kafka").iterdir()] == [f"{VERSION}.lock"]


def test_a_broken_local_repository_is_skipped(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for jar in shop.serves.iterdir():
        (broken / jar.name).write_bytes(b"")
    fake_mvn(shop.mvn, serves=broken, private=shop.serves)
    shop.cache().ensure(find_java)
    assert shop.cache().complete(read_all=True)
    assert "past its local repository" in caplog.text
    first, second = runs(shop.mvn)
    assert "-Dmaven.repo.local=" not in first
    assert "-Dmaven.repo.local=" in second


@pytest.mark.slow
def test_two_processes_fetch_once(shop: Shop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    fake_mvn(shop.mvn, serves=shop.serves, before=f"read go < '{gate}'")
    program = (
        "from tidewheel.streams.broker.jars import JarCache; from tidewheel.streams.broker.java import find_java; "
        f"from pathlib import Path; JarCache({VERSION!r}, root=Path({str(shop.root)!r})).ensure("
        "find_java, show_progress=False); print('done')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    _open_gate(gate)
    assert [process.communicate(timeout=300)[0] for process in both] == [b"done\n", b"done\n"]
    assert len(runs(shop.mvn)) == 1


def _open_gate(gate: Path) -> None:
    """Release the one waiting Maven."""
    deadline = time.monotonic() + 60
    while True:
        try:
            descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            assert time.monotonic() < deadline, "no Maven was started"
            time.sleep(0.02)
        else:
            os.write(descriptor, b"go\n")
            os.close(descriptor)
            return


def test_files_of_a_killed_fetch_are_deleted(shop: Shop) -> None:
    left_over = shop.root / "kafka" / f".{VERSION}-abc"
    left_over.mkdir(parents=True)
    (left_over / "half.jar").write_bytes(b"")
    shop.cache().ensure(find_java)
    assert not left_over.exists()


def test_without_maven_and_ivy_the_error_names_the_extra(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # not installed
    shop.mvn.unlink()
    with pytest.raises(FetchError) as failure:
        shop.cache().ensure(find_java)
    assert "pip install 'tidewheel[spark]' (about 485 MB installed)" in str(failure.value)


def test_a_failing_maven_is_quoted(shop: Shop) -> None:
    script(
        shop.mvn, "echo 'mirror is https://me:secret@mirror.example/x'; echo BUILD FAILED; exit 7"
    )
    with pytest.raises(FetchError) as failure:
        shop.cache().ensure(find_java)
    message = str(failure.value)
    assert f"Maven could not fetch Kafka {VERSION}: it ended with exit code 7" in message
    assert f"Command: {shop.mvn} --batch-mode" in message
    assert "mirror is https://***@mirror.example/x\n  BUILD FAILED" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "said",
    [
        "[ERROR] Could not transfer artifact a:b:pom:1 from/to central: Connect failed",
        "[ERROR] Cannot access central in offline mode",
        "Server access error at url x (java.net.ConnectException: Connection refused)",
    ],
)
def test_a_missing_network_has_its_own_error(shop: Shop, said: str) -> None:
    noise = "\n".join(f"echo '[ERROR] help {number}'" for number in range(30))
    script(shop.mvn, f"echo '{said}'\n{noise}\nexit 1")
    with pytest.raises(FetchError) as failure:
        shop.cache().ensure(find_java)
    assert "could not reach its registry; check the network" in str(failure.value)
    assert said in str(failure.value)


@pytest.mark.parametrize(
    "said",
    [
        f"[ERROR] Could not find artifact org.apache.kafka:kafka_2.13:jar:{VERSION} in central",
        f"org.apache.kafka:kafka_2.13:jar:{VERSION} was not found in x during a previous attempt",
        f":: org.apache.kafka#kafka_2.13;{VERSION}: not found",
    ],
)
def test_an_unpublished_version_has_its_own_error(shop: Shop, said: str) -> None:
    script(shop.mvn, f"echo '{said}'; exit 1")
    with pytest.raises(UnknownVersionError, match=f"there is no Kafka {VERSION}"):
        shop.cache().ensure(find_java)


@pytest.mark.parametrize("version", ["3.9.1", "2.8.0"])
def test_a_version_with_zookeeper_is_refused(version: str) -> None:
    with pytest.raises(UnknownVersionError, match=f"Kafka {version} is too old"):
        JarCache(version)


@pytest.mark.parametrize("version", ["4.3", "latest", "../../x", "4.3.1\n"])
def test_an_invalid_version_is_refused(version: str) -> None:
    with pytest.raises(UnknownVersionError, match="is no Kafka version"):
        JarCache(version)


@pytest.mark.slow
def test_a_fetch_longer_than_its_timeout_is_ended(shop: Shop) -> None:
    script(shop.mvn, "exec /bin/sleep 30")
    with pytest.raises(FetchError, match="was not done after 300 ms and was ended"):
        shop.cache().ensure(find_java, timeout_ms=300)


def test_waiting_for_another_fetch_has_a_timeout(shop: Shop) -> None:
    from tidewheel.streams.broker.file_lock import FileLock  # noqa: PLC0415  # only this test needs it

    with (
        FileLock(shop.root / "kafka" / f"{VERSION}.lock"),
        pytest.raises(BrokerError, match="still locked by another process"),
    ):
        shop.cache().ensure(find_java, timeout_ms=60)


def test_ivy_is_used_when_maven_fails(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(shop.mvn, "exit 1")
    _give_ivy(shop, tmp_path / "ivy-2.5.3.jar")
    monkeypatch.setenv("TIDEWHEEL_IVY_JAR", str(tmp_path / "ivy-2.5.3.jar"))
    shop.cache().ensure(find_java)
    assert shop.cache().complete(read_all=True)


def test_the_ivy_of_an_installed_pyspark_is_found(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.mvn.unlink()
    site = tmp_path / "site"
    (site / "pyspark" / "jars").mkdir(parents=True)
    (site / "pyspark" / "__init__.py").write_text("raise AssertionError('must not be imported')")
    _give_ivy(shop, site / "pyspark" / "jars" / "ivy-2.5.3.jar")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # another test may have used it
    shop.cache().ensure(find_java)
    assert shop.cache().complete(read_all=True)


def test_a_wrong_ivy_jar_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_IVY_JAR", "/nowhere/ivy.jar")
    with pytest.raises(FetchError, match=r"\$TIDEWHEEL_IVY_JAR is /nowhere/ivy\.jar"):
        shop.cache().ensure(find_java)


def _give_ivy(shop: Shop, jar: Path) -> None:
    """A java that, run with this Ivy, puts the jars at the retrieve pattern."""
    jar.write_bytes(b"")
    fake_java(
        shop.path / "java",
        body=f"""
[ "$1 $2" = "-jar {jar}" ] || exit 9
while [ $# -gt 0 ]; do if [ "$1" = -retrieve ]; then out=${{2%/*}}; fi; shift; done
/bin/mkdir -p "$out" && /bin/cp '{shop.serves}'/*.jar "$out"
""",
    )


def test_progress_counts_each_jar_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    request = FetchRequest(version=VERSION, folder=tmp_path / "aside")
    (request.folder / "ivy-cache").mkdir(parents=True)
    request.jars.mkdir()
    name = f"kafka_2.13-{VERSION}.jar"
    (request.folder / "ivy-cache" / name).write_bytes(b"0" * 1000)
    (request.jars / name).write_bytes(b"0" * 1000)
    (request.folder / "ivy-cache" / f"log4j-{VERSION}.jar.part").write_bytes(b"0" * 50)
    (request.folder / "ivy-cache" / "plugin.jar").write_bytes(b"0" * 9999)
    assert fetched_bytes(request, shop.lock) == 1050
    request.log_file.write_text(
        f"[INFO] Downloading from r: http://r/kafka-clients-{VERSION}.jar\n"
        f"[INFO] Downloaded from r: http://r/log4j-{VERSION}.jar (1 kB at 2 kB/s)\n"
        "[INFO] Downloaded from r: http://r/plugin.jar (1 kB at 2 kB/s)\n"
    )
    assert fetched_bytes(request, shop.lock) == 1000 + 500


def test_the_progress_bar_shows_sizes(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.cache().ensure(find_java, show_progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"Kafka {VERSION} (Maven)" in shown.err
    assert "2.8/2.8 kB" in shown.err


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir({}) == tmp_path / ".cache" / "tidewheel"
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/tidewheel")
    assert cache_dir({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "tidewheel"
    assert cache_dir({"XDG_CACHE_HOME": "/x", "TIDEWHEEL_CACHE_DIR": "/y"}) == Path("/y")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir({}) == tmp_path / "Library" / "Caches" / "tidewheel"
