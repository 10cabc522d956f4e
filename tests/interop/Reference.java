import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs cases on Kafka Streams: standard input has one JSON object per line, {name, params, inputs}. Each gets one line,
 * {outputs: [{topic, key, value, ts, after}]} or {error}. The topologies equal those of topologies.py.
 */
public final class Reference {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Consumed<String, String> TEXT = Consumed.with(Serdes.String(), Serdes.String());
    private static final ValueJoiner<String, String, String> JOINER = (left, right) -> left + "-" + right;

    private final StreamsBuilder builder = new StreamsBuilder();
    private final JsonNode params;
    private final List<String> outputs = new ArrayList<>();

    private Reference(final JsonNode params) {
        this.params = params;
    }

    public static void main(final String[] arguments) throws IOException {
        final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static ObjectNode answer(final JsonNode asked) throws IOException {
        final ObjectNode answer = JSON.createObjectNode();
        try {
            final Reference reference = new Reference(asked.get("params"));
            reference.build(asked.get("name").asText());
            answer.set("outputs", reference.run(asked.get("inputs")));
        } catch (final RuntimeException error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            answer.put("error", error + " <- " + cause + " at " + cause.getStackTrace()[0]);
        }
        return answer;
    }

    private ArrayNode run(final JsonNode inputs) throws IOException {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "reference");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:9092");
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("reference").toString());
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        if (params.path("optimize").asBoolean(false)) {
            config.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        }
        final ArrayNode seen = JSON.createArrayNode();
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(config), config, Instant.ofEpochMilli(0))) {
            for (int index = 0; index < inputs.size(); index++) {
                final JsonNode input = inputs.get(index);
                final TestInputTopic<String, String> topic = driver.createInputTopic(
                    input.get("topic").asText(), new StringSerializer(), new StringSerializer());
                topic.pipeInput(text(input.get("key")), text(input.get("value")), input.get("ts").asLong());
                for (final String output : outputs) {
                    read(driver, output, index, seen);
                }
            }
        }
        return seen;
    }

    private static void read(
        final TopologyTestDriver driver, final String output, final int index, final ArrayNode seen) {
        final Deserializer<String> text = new StringDeserializer();
        final TestOutputTopic<String, String> topic = driver.createOutputTopic(output, text, text);
        for (final TestRecord<String, String> record : topic.readRecordsToList()) {
            seen.addObject()
                .put("topic", output)
                .put("key", record.key())
                .put("value", record.value())
                .put("ts", record.timestamp())
                .put("after", index);
        }
    }

    private static String text(final JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    private long number(final String name) {
        return params.get(name).asLong();
    }

    private Duration duration(final String name) {
        return Duration.ofMillis(number(name));
    }

    private boolean is(final String name, final String value) {
        return value.equals(params.path(name).asText());
    }

    private KStream<String, String> stream(final String topic) {
        return builder.stream(topic, TEXT);
    }

    private KTable<String, String> table(final String topic) {
        if (params.has("history_ms")) {
            return builder.table(topic, TEXT, Materialized.as(
                Stores.persistentVersionedKeyValueStore(topic + "-store", duration("history_ms"))));
        }
        return builder.table(topic, TEXT, Materialized.as(topic + "-store"));
    }

    private void to(final KStream<String, String> stream, final String topic) {
        outputs.add(topic);
        stream.to(topic, Produced.with(Serdes.String(), Serdes.String()));
    }

    private static KStream<String, String> plain(final KTable<Windowed<String>, String> table) {
        return table.toStream().selectKey(
            (key, value) -> key.key() + "@" + key.window().start() + ":" + key.window().end());
    }

    private <S extends StateStore> Materialized<String, String, S> kept(final Materialized<String, String, S> store) {
        return params.has("retention_ms") ? store.withRetention(duration("retention_ms")) : store;
    }

    private EmitStrategy strategy() {
        return is("emit", "close") ? EmitStrategy.onWindowClose() : EmitStrategy.onWindowUpdate();
    }

    private void build(final String name) {
        switch (name) {
            case "stateless":
                stateless();
                break;
            case "table_operators":
                tableOperators();
                break;
            case "stream_aggregate":
                streamAggregate();
                break;
            case "grouped_table":
                groupedTable();
                break;
            case "time_windows":
                timeWindows();
                break;
            case "sliding_windows":
                slidingWindows();
                break;
            case "session_windows":
                sessionWindows();
                break;
            case "unlimited_windows":
                unlimitedWindows();
                break;
            case "cogroup":
                cogroup();
                break;
            case "suppress_limit":
                suppressLimit();
                break;
            case "stream_stream_join":
                streamStreamJoin();
                break;
            case "self_join":
                selfJoin();
                break;
            case "stream_table_join":
                streamTableJoin();
                break;
            case "stream_global_join":
                streamGlobalJoin();
                break;
            case "table_table_join":
                tableTableJoin();
                break;
            case "foreign_key_join":
                foreignKeyJoin();
                break;
            default:
                throw new IllegalArgumentException("no topology " + name);
        }
    }

    private void stateless() {
        final KStream<String, String> source = stream("left");
        final KStream<String, String> some = source
            .filter((key, value) -> value != null && !value.startsWith("b"))
            .flatMap((key, value) -> List.of(KeyValue.pair(key, value + "1"), KeyValue.pair(value, key + "2")));
        to(some.merge(source.mapValues(value -> value + "!")), "merged");
        to(some.repartition().mapValues((key, value) -> key + value), "repartitioned");
        to(source.selectKey((key, value) -> value).toTable().toStream(), "tabled");
    }

    private void tableOperators() {
        final KTable<String, String> source = table("left");
        to(source.toStream(), "source");
        final KTable<String, String> mapped = source
            .filter((key, value) -> !value.startsWith("b"))
            .mapValues((key, value) -> key + value);
        to(mapped.toStream(), "mapped");
        to(mapped.filterNot((key, value) -> value.endsWith("c"), Materialized.as("kept")).toStream(), "kept-out");
        to(mapped
            .groupBy((key, value) -> KeyValue.pair(value, value), Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream().mapValues(String::valueOf), "counted");
    }

    private void streamAggregate() {
        final KGroupedStream<String, String> grouped = stream("left").groupByKey();
        to(grouped.count().toStream().mapValues(String::valueOf), "counted");
        to(grouped.reduce((old, value) -> value.startsWith("d") ? null : old + value).toStream(), "reduced");
        to(grouped.aggregate(() -> "0", (key, value, aggregate) -> value.startsWith("d") ? null : aggregate + "+" + value)
            .toStream(), "aggregated");
    }

    private void groupedTable() {
        to(table("left")
            .groupBy((key, value) -> value.startsWith("d") ? KeyValue.pair((String) null, value)
                : KeyValue.pair(is("group", "same") ? key : value.substring(0, 1), value))
            .aggregate(() -> "0", (key, value, aggregate) -> aggregate + "+" + value,
                (key, value, aggregate) -> aggregate + "-" + value)
            .toStream(), "aggregated");
        to(table("right")
            .groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value))
            .reduce((aggregate, value) -> aggregate + "+" + value, (aggregate, value) -> aggregate + "-" + value)
            .toStream(), "reduced");
    }

    private TimeWindows windows() {
        final TimeWindows windows = TimeWindows.ofSizeAndGrace(duration("size_ms"), duration("grace_ms"));
        return params.has("advance_ms") ? windows.advanceBy(duration("advance_ms")) : windows;
    }

    private void timeWindows() {
        final Materialized<String, String, WindowStore<Bytes, byte[]>> store = kept(
            Materialized.<String, String, WindowStore<Bytes, byte[]>>as("store").withCachingDisabled());
        final KTable<Windowed<String>, String> table = stream("left").groupByKey().windowedBy(windows())
            .emitStrategy(strategy())
            .aggregate(() -> "0", (key, value, aggregate) -> aggregate + "+" + value, store);
        to(plain(table), "updates");
        if (!is("emit", "close")) {
            suppressed(table);
        }
    }

    private void suppressed(final KTable<Windowed<String>, String> table) {
        to(plain(table.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))), "final");
    }

    private void slidingWindows() {
        final Materialized<String, String, WindowStore<Bytes, byte[]>> store = kept(
            Materialized.<String, String, WindowStore<Bytes, byte[]>>as("store").withCachingDisabled());
        final SlidingWindows windows =
            SlidingWindows.ofTimeDifferenceAndGrace(duration("difference_ms"), duration("grace_ms"));
        to(plain(stream("left").groupByKey().windowedBy(windows).emitStrategy(strategy())
            .aggregate(() -> "0", (key, value, aggregate) -> aggregate + "+" + value, store)), "updates");
    }

    private void sessionWindows() {
        final Materialized<String, String, SessionStore<Bytes, byte[]>> store = kept(
            Materialized.<String, String, SessionStore<Bytes, byte[]>>as("store").withCachingDisabled());
        final SessionWindows windows =
            SessionWindows.ofInactivityGapAndGrace(duration("gap_ms"), duration("grace_ms"));
        to(plain(stream("left").groupByKey().windowedBy(windows).emitStrategy(strategy())
            .aggregate(() -> "0", (key, value, aggregate) -> aggregate + "+" + value,
                (key, one, two) -> "(" + one + "|" + two + ")", store)), "updates");
    }

    private void unlimitedWindows() {
        to(plain(stream("left").groupByKey().windowedBy(UnlimitedWindows.of().startOn(Instant.ofEpochMilli(number("start_ms"))))
            .reduce((old, value) -> old + value)), "updates");
    }

    private void cogroup() {
        final KGroupedStream<String, String> left = stream("left").groupByKey();
        final KGroupedStream<String, String> right = stream("right").groupByKey();
        to(left.<String>cogroup((key, value, aggregate) -> aggregate + "+" + value)
            .cogroup(right, (key, value, aggregate) -> aggregate + "-" + value)
            .aggregate(() -> "0").toStream(), "updates");
        to(plain(left.<String>cogroup((key, value, aggregate) -> aggregate + "+" + value)
            .cogroup(right, (key, value, aggregate) -> aggregate + "-" + value)
            .windowedBy(windows()).aggregate(() -> "0",
                kept(Materialized.<String, String, WindowStore<Bytes, byte[]>>as("windowed")))), "windowed");
    }

    private void suppressLimit() {
        Suppressed.EagerBufferConfig buffer = Suppressed.BufferConfig.maxRecords(number("records")).emitEarlyWhenFull();
        if (number("records") == 0) {
            to(table("left").suppress(Suppressed.untilTimeLimit(
                duration("limit_ms"), Suppressed.BufferConfig.unbounded())).toStream(), "suppressed");
        } else {
            to(table("left").suppress(Suppressed.untilTimeLimit(duration("limit_ms"), buffer)).toStream(), "suppressed");
        }
    }

    private JoinWindows joinWindows() {
        return JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, duration("grace_ms"))
            .after(duration("after_ms")).before(duration("before_ms"));
    }

    private void streamStreamJoin() {
        final KStream<String, String> left = stream("left");
        final KStream<String, String> right = stream("right");
        final StreamJoined<String, String, String> joined =
            StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
        if (is("how", "inner")) {
            to(left.join(right, JOINER, joinWindows(), joined), "joined");
        } else if (is("how", "left")) {
            to(left.leftJoin(right, JOINER, joinWindows(), joined), "joined");
        } else {
            to(left.outerJoin(right, JOINER, joinWindows(), joined), "joined");
        }
    }

    private void selfJoin() {
        final KStream<String, String> left = stream("left");
        to(left.join(left, JOINER, joinWindows(), StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String())),
            "joined");
    }

    private void streamTableJoin() {
        final Serde<String> text = Serdes.String();
        KTable<String, String> right = table("right");
        if (is("view", "mapped")) {
            right = right.filter((key, value) -> !value.startsWith("b")).mapValues(value -> value + "!");
        }
        final Joined<String, String, String> joined = params.has("join_grace_ms")
            ? Joined.with(text, text, text, "join", duration("join_grace_ms")) : Joined.with(text, text, text);
        if (is("how", "inner")) {
            to(stream("left").join(right, JOINER, joined), "joined");
        } else {
            to(stream("left").leftJoin(right, JOINER, joined), "joined");
        }
    }

    private void streamGlobalJoin() {
        final GlobalKTable<String, String> global = builder.globalTable("right", TEXT, Materialized.as("global"));
        if (is("how", "inner")) {
            to(stream("left").join(global, (key, value) -> value, JOINER), "joined");
        } else {
            to(stream("left").leftJoin(global, (key, value) -> value, JOINER), "joined");
        }
    }

    private void tableTableJoin() {
        final KTable<String, String> left = table("left");
        final KTable<String, String> right = table("right");
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> store =
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("result").withCachingDisabled();
        final boolean stored = is("stored", "yes");
        final KTable<String, String> joined;
        if (is("how", "inner")) {
            joined = stored ? left.join(right, JOINER, store) : left.join(right, JOINER);
        } else if (is("how", "left")) {
            joined = stored ? left.leftJoin(right, JOINER, store) : left.leftJoin(right, JOINER);
        } else {
            joined = stored ? left.outerJoin(right, JOINER, store) : left.outerJoin(right, JOINER);
        }
        to(joined.toStream(), "joined");
        if (is("grouped", "yes")) {
            to(joined.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value))
                .aggregate(() -> "0", (key, value, aggregate) -> aggregate + "+" + value,
                    (key, value, aggregate) -> aggregate + "~" + value).toStream(), "grouped");
        }
    }

    private void foreignKeyJoin() {
        final KTable<String, String> left = table("left");
        final KTable<String, String> right = table("right");
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> store =
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("result").withCachingDisabled();
        if (is("how", "inner")) {
            to(left.join(right, Reference::foreignKey, JOINER, store).toStream(), "joined");
        } else {
            to(left.leftJoin(right, Reference::foreignKey, JOINER, store).toStream(), "joined");
        }
    }

    private static String foreignKey(final String value) {
        return value.startsWith("d") ? null : value.substring(0, 1);
    }
}
