"""Backfills whose outputs become Parquet files: their content, and places that can't be used."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.bulk.backfill.shops import MakeTopology, Shop, lines, output_files, words
from tests.bulk.batch_topologies import Payment
from tests.integration.cluster import until
from tidewheel import Serdes, StreamsBuilder, StreamsError, Topology
from tidewheel.bulk import BackfillRefused, BulkStep, backfill, run_batch
from tidewheel.state_stores.bulk_restore.spark.job import SparkSession
from tidewheel.state_stores.bulk_restore.spark.parquet import write_parquet
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode

_HEADERS = (("trace", b"1"), ("empty", None))
_RECORDS = (
    "key binary, value binary, timestamp bigint, headers array<struct<key:string,value:binary>>, "
    "partition int, offset bigint"
)


def typed(source: str, sink: str) -> Topology:
    """Numbers as keys, fields and nulls as values, headers, and a topic without a record."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=str, value_serde=str)
    paid = stream.map(_paid)
    paid.to(sink, key_serde=int, value_serde=Serdes.json(Payment))
    none = stream.filter(lambda _, text: text == "none")
    none.to(f"{sink}-none", key_serde=str, value_serde=str)
    return builder.build()


def _paid(key: str, text: str | None) -> tuple[int, Payment | None]:
    return len(key), None if text is None else Payment(text[0], len(text))


@pytest.mark.parametrize(
    ("make", "types"),
    [
        (words, ("string", "bigint")),
        (typed, ("bigint", "string")),
    ],
    ids=["words", "typed"],
)
def test_files_equal_the_frames_of_a_batch_run(
    shop: Shop, spark: SparkSession, tmp_path: Path, make: MakeTopology, types: tuple[str, str]
) -> None:
    topology, cluster = make(shop.source, shop.sink), shop.cluster
    shop.send(lines(2_000, 11, late_share=0.1))
    if make is typed:
        first = lines(1, 11, late_share=0)[0][2]
        others = [(b"kay", b"an d"), (b"kay", None)]
        cluster.send(shop.source, others, first_timestamp=first, headers=_HEADERS)
    folder = tmp_path / "outputs"
    report = backfill(topology, shop.config, outputs=folder.as_uri(), spark=spark)
    assert not cluster.read(shop.sink)
    records = [
        (each.key, each.value, each.timestamp, list(each.headers), each.partition, each.offset)
        for each in cluster.read(shop.source)
    ]
    frame = spark.createDataFrame(records, _RECORDS)
    with run_batch(
        topology, {shop.source: frame}, partitions=3, config=shop.config, spark=spark
    ) as result:
        assert {path.name for path in folder.iterdir()} == set(result.outputs)
        for topic, outputs in result.outputs.items():
            written = output_files(spark, folder, topic)
            assert written == outputs.orderBy("partition", "offset").collect()
            assert len(written) == report.outputs.get(topic, 0)
            found = dict(spark.read.parquet(str(folder / topic)).dtypes)
            assert found == dict(outputs.dtypes)
            if topic == shop.sink:
                assert (found["key"], found["value"]) == types
                assert len(written) > 500


def test_files_equal_what_another_backfill_writes_to_topics(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    topology, to_topics = typed(shop.source, shop.sink), f"{shop.app}-topics"
    shop.cluster.create({f"{shop.sink}-none": 1})
    shop.send(lines(1_000, 12, late_share=0.1))
    shop.cluster.send(shop.source, [(b"kay", None)], headers=_HEADERS, first_timestamp=1)
    accept = ["retention"]
    backfill(topology, shop.config, outputs=str(tmp_path / "outputs"), accept=accept, spark=spark)
    assert not shop.cluster.read(shop.sink)
    backfill(topology, shop.named(to_topics), outputs="topics", accept=accept, spark=spark)
    number = Serdes.int64()
    wanted = [
        (
            number.deserialize("", each.key),
            None if each.value is None else json.loads(each.value),
            each.timestamp,
            each.headers,
            each.partition,
        )
        for each in shop.cluster.read(shop.sink)
    ]
    found: list[tuple[Any, ...]] = [
        (
            row.key,
            None if row.value is None else json.loads(row.value),
            row.timestamp,
            tuple(tuple(header) for header in row.headers),
            row.partition,
        )
        for row in output_files(spark, tmp_path / "outputs", shop.sink)
    ]
    assert found == wanted
    assert len(found) == 1_001
    assert shop.cluster.committed(shop.app) == shop.cluster.committed(to_topics)


def test_the_command_writes_files_and_live_workers_go_on(
    shop: Shop, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / f"program_{shop.sink.replace('-', '_')}.py"
    program.write_text(
        "from tests.bulk.backfill.shops import words\n"
        f"config = {{'application_id': {shop.app!r}}}\n"
        f"topology = words({shop.source!r}, {shop.sink!r})\n"
    )
    servers = ("--bootstrap-servers", shop.cluster.bootstrap_servers)
    settings = (*servers, "--state-dir", str(tmp_path), "--set", "statestore_cache_max_bytes=0")
    folder = tmp_path / "outputs"
    shop.send(lines(1_000, 13, late_share=0.1))
    command = ("backfill", f"{program}:topology", "--outputs", folder.as_uri(), *settings)
    assert main([*command, "--json"]) == ExitCode.OK
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed[-1]["records"] == 1_000
    before = output_files(spark, folder, shop.sink)
    assert printed[-1]["outputs"] == {shop.sink: len(before)}
    assert [line["step"] for line in printed if "text" in line] == [
        "spark", "outputs", "begin", "write", "commit",
    ]  # fmt: skip
    shop.send(lines(2_000, 13, late_share=0.1)[1_000:])
    shop.live(shop.app, words(shop.source, shop.sink))
    counts = {row.key: row.value for row in before}
    for key, values in shop.cluster.values_by_key(shop.sink).items():
        numbers = [Serdes.int64().deserialize("", value or b"") for value in values]
        first = counts[key.decode()] + 1
        assert sorted(numbers) == list(range(first, first + len(numbers)))


def test_a_place_that_cannot_be_used_is_an_error_before_anything_is_read(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    topology = words(shop.source, shop.sink)
    shop.send(lines(100, 14, late_share=0))
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "full" / "other").mkdir(parents=True)
    problems = {
        f"file://{tmp_path}/file/out": "/file/out: Spark can't write there: .*check the address",
        "s3://key:secret@bucket/out": r"^s3://\*\*\*@bucket/out: Spark can't write there: .*hadoop-aws",
        str(tmp_path / "full"): "/full is not empty, .*name another folder",
    }
    steps = list[Any]()
    for outputs, problem in problems.items():
        with pytest.raises(StreamsError, match=problem):
            backfill(
                topology, shop.config, outputs=outputs, spark=spark,
                on_progress=steps.append, on_step=steps.append,
            )  # fmt: skip
    assert steps == []
    own = {topic for topic in shop.cluster.admin.list_topics() if topic.startswith(shop.app)}
    assert own == {f"{shop.app}-group-state", f"{shop.app}-group-inbox"}
    report = backfill(topology, shop.config, outputs=str(tmp_path / "outputs"), spark=spark)
    assert not report.again
    assert report.outputs == {shop.sink: 400}


def test_a_place_that_is_lost_on_the_way_leaves_the_group_free_and_the_work_done(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    topology, folder = words(shop.source, shop.sink), tmp_path / "outputs"
    shop.send(lines(100, 15, late_share=0))

    def lose(step: BulkStep) -> None:
        assert step.phase == "outputs"
        folder.rmdir()
        folder.write_text("no folder")

    with pytest.raises(StreamsError, match=r"/outputs/.*: Spark can't write there") as raised:
        backfill(topology, shop.config, outputs=str(folder), spark=spark, on_step=lose)
    assert "held" not in str(raised.value)
    folder.unlink()
    report = backfill(topology, shop.config, outputs=str(folder), spark=spark)
    assert report.again
    assert len(output_files(spark, folder, shop.sink)) == 400


def test_a_refused_publication_keeps_the_work_done(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    topology, folder = words(shop.source, shop.sink), tmp_path / "outputs"
    shop.send(lines(100, 16, late_share=0))
    member = Consumer({"bootstrap.servers": shop.cluster.bootstrap_servers, "group.id": shop.app})

    def join(step: BulkStep) -> None:
        if step.phase == "outputs":
            member.subscribe([shop.source])
            until(lambda: member.poll(0.1) or member.assignment(), "a member of the group")

    with pytest.raises(BackfillRefused, match="1 subscribed members"):
        backfill(topology, shop.config, outputs=str(folder), spark=spark, on_step=join)
    member.close()
    shop.send(lines(100, 17, late_share=0))
    report = backfill(topology, shop.config, outputs=str(folder), spark=spark)
    assert report.again
    assert report.records == 100, "the ends of the first run"
    assert len(output_files(spark, folder, shop.sink)) == 400


def test_rows_that_the_driver_does_not_see_are_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Executors that write to disks of their own lose rows without an error of Spark."""
    frame = spark.range(2).toDF("number")
    with pytest.raises(StreamsError, match="/out has 2 rows after 3 were written; give a folder"):
        write_parquet(frame, str(tmp_path / "out"), 3)
    write_parquet(frame, str(tmp_path / "out"), 2)
