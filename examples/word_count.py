"""Count words.

    tidewheel broker --port 9092 --topics lines:4,word-counts:4
    tidewheel run examples/word_count.py:topology

Write lines to the topic `lines`; `word-counts` receives each word with its count so far.
"""

import re

from tidewheel import StreamsBuilder

config = {"application_id": "word-count"}


def words(line: str) -> list[str]:
    return re.findall(r"\w+", line.lower())


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream("lines", key_serde=str, value_serde=str)
        .flat_map_values(words)
        .group_by(lambda word: word, key_serde=str, value_serde=str)
        .count(store="counts")
        .to_stream()
        .to("word-counts", key_serde=str, value_serde=int)
    )
    return builder
