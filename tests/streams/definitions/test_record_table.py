"""Record tables: lists whose notebook form is an escaped HTML table."""

from tidewheel import OutputRecord, StreamsBuilder
from tidewheel.streams.definitions.record_table import RecordTable
from tidewheel.testing import TopologyTestDriver


def _record(number: int, headers: tuple[tuple[str, bytes | None], ...] = ()) -> OutputRecord:
    return OutputRecord(
        topic="out", partition=0, offset=number, key="<k>", value={"n": number}, timestamp=number,
        headers=headers,
    )  # fmt: skip


def test_cells_are_escaped_and_times_readable() -> None:
    html = RecordTable([_record(1_500)])._repr_html_()
    assert "<td>&lt;k&gt;</td>" in html
    assert "1970-01-01 00:00:01.500" in html
    assert "<th>headers</th>" not in html
    assert "<th>headers</th>" in RecordTable([_record(1, (("h", b"1"),))])._repr_html_()


def test_long_tables_and_cells_are_cut() -> None:
    html = RecordTable(map(_record, range(250)))._repr_html_()
    assert html.count("<tr>") == 101
    assert "150" in html
    assert len(RecordTable([("k", "x" * 10_000)])._repr_html_()) < 1_000


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    record = OutputRecord(topic="out", partition=0, offset=0, key=1, value=2, timestamp=2**62)
    assert str(2**62) in RecordTable([record])._repr_html_()


def test_the_driver_s_outputs_are_tables_and_showing_them_reads_none() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=str)
        output = driver.create_output_topic("out", key_serde=str, value_serde=str)
        assert "no records" in output._repr_html_()
        source.pipe_input("a", "<1>", 5)
        shown = output._repr_html_()
        assert "<td>&lt;1&gt;</td>" in shown
        records = output.read_records()
        assert records == [records[0]]
        assert records._repr_html_() == shown  # type: ignore[attr-defined] # of the table, not of `list`
        source.pipe_input("a", "2", 6)
        pairs = output.read_key_values()
        assert pairs == [("a", "2")]
        assert "<td>2</td>" in pairs._repr_html_()  # type: ignore[attr-defined] # as above
