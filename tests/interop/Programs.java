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
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.LongPredicate;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Merger;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Predicate;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Reducer;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.ValueJoinerWithKey;
import org.apache.kafka.streams.kstream.ValueJoinerWithStreamAndMappedKey;
import org.apache.kafka.streams.kstream.ValueMapperWithKey;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.Windows;
import org.apache.kafka.streams.kstream.internals.TimeWindow;
import org.apache.kafka.streams.processor.ProcessorContext;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.DslStoreSuppliers;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs random programs on Kafka Streams: one JSON object a line on standard input, {config, sources, steps, inputs}. The answer
 * is one line: {describe, outputs} or {phase, error}. `programs.py` builds the same programs in Python.
 */
public final class Programs {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int READABLE = 14;

    private final StreamsBuilder builder;
    private final List<KStream<String, String>> streams = new ArrayList<>();
    private final List<KTable<String, String>> tables = new ArrayList<>();
    private GlobalKTable<String, String> world;

    private Programs(final Properties config) {
        builder = new StreamsBuilder(new org.apache.kafka.streams.TopologyConfig(new StreamsConfig(config)));
    }

    public static void main(final String[] arguments) throws IOException {
        final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static ObjectNode answer(final JsonNode program) throws IOException {
        final ObjectNode answer = JSON.createObjectNode();
        final Path folder = Files.createTempDirectory("program");
        String phase = "build";
        try {
            final Properties config = config(program.get("config"), folder);
            final Programs made = new Programs(config);
            for (final JsonNode source : program.get("sources")) {
                made.source(source);
            }
            for (final JsonNode step : program.get("steps")) {
                made.apply(step);
            }
            final List<String> outputs = made.finish(program.get("sinks"));
            final Topology topology = made.builder.build(config);
            answer.put("describe", topology.describe().toString());
            phase = "run";
            answer.set("outputs", run(topology, config, outputs, program.get("inputs")));
        } catch (final RuntimeException error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            answer.put("phase", phase);
            answer.put("error", error + " <- " + cause + " at " + cause.getStackTrace()[0]);
        } finally {
            try (Stream<Path> files = Files.walk(folder)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
        return answer;
    }

    private static Properties config(final JsonNode asked, final Path folder) {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "programs");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:9092");
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, asked.get("cache").asLong());
        config.put(StreamsConfig.STATE_DIR_CONFIG, folder.toString());
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, asked.get("optimize").asText());
        config.put(StreamsConfig.DSL_STORE_FORMAT_CONFIG, asked.get("format").asText());
        if (asked.get("store").asText().equals("in_memory")) {
            config.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        }
        return config;
    }

    private static ObjectNode run(
        final Topology topology, final Properties config, final List<String> outputs, final JsonNode inputs) {
        final Map<String, ArrayNode> seen = new LinkedHashMap<>();
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, config, Instant.ofEpochMilli(0))) {
            final StringSerializer serializer = new StringSerializer();
            final StringDeserializer deserializer = new StringDeserializer();
            for (int index = 0; index < inputs.size(); index++) {
                final JsonNode input = inputs.get(index);
                if (input.get(0).isNull()) {
                    driver.advanceWallClockTime(Duration.ofMillis(input.get(3).asLong()));
                } else {
                    final TestInputTopic<String, String> topic =
                        driver.createInputTopic(input.get(0).asText(), serializer, serializer);
                    final Headers headers = new RecordHeaders();
                    for (final JsonNode header : input.path(4)) {
                        headers.add(header.get(0).asText(), header.get(1).asText().getBytes(StandardCharsets.UTF_8));
                    }
                    topic.pipeInput(new TestRecord<>(
                        text(input.get(1)), text(input.get(2)), headers, input.get(3).asLong()));
                }
                for (final String output : outputs) {
                    final TestOutputTopic<String, String> results =
                        driver.createOutputTopic(output, deserializer, deserializer);
                    for (final TestRecord<String, String> record : results.readRecordsToList()) {
                        seen.computeIfAbsent(output, name -> JSON.createArrayNode()).addArray()
                            .add(index).add(record.key()).add(record.value()).add(record.timestamp());
                    }
                }
            }
        }
        final ObjectNode all = JSON.createObjectNode();
        seen.forEach(all::set);
        return all;
    }

    // The functions of programs.

    private static String text(final JsonNode node) {
        return node == null || node.isNull() ? null : node.asText();
    }

    private static String joined(final Object... parts) {
        final StringBuilder all = new StringBuilder();
        for (final Object part : parts) {
            all.append(all.length() == 0 ? "" : ",").append(part == null ? "~" : part.toString());
        }
        return all.toString();
    }

    private static long digest(final Object... parts) {
        final CRC32 crc = new CRC32();
        crc.update(joined(parts).getBytes(StandardCharsets.UTF_8));
        return crc.getValue();
    }

    private static String mix(final Object... parts) {
        final String all = joined(parts);
        return all.length() <= READABLE ? all : String.format("%08x", digest(parts));
    }

    private static boolean chosen(final int salt, final Object key, final Object value) {
        return digest(salt, key, value) % 2 == 0;
    }

    private static String keyOf(final int salt, final Object key, final Object value) {
        final int number = (int) (digest(salt, key, value) % 6);
        return "abcdef".substring(number, number + 1);
    }

    private static String unlessDeleted(final boolean deletes, final String value) {
        return deletes && value != null && digest("deleted", value) % 4 == 0 ? null : value;
    }

    // Parts of steps.

    private static Named named(final JsonNode step) {
        return step.has("name") ? Named.as(step.get("name").asText()) : null;
    }

    private static Duration ms(final JsonNode step, final String name) {
        return Duration.ofMillis(step.get(name).asLong());
    }

    private static DslStoreSuppliers suppliers(final String type) {
        return type.equals("in_memory")
            ? new BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers()
            : new BuiltInDslStoreSuppliers.RocksDBDslStoreSuppliers();
    }

    private static <V, S extends StateStore> Materialized<String, V, S> options(
        final Materialized<String, V, S> made, final JsonNode kept) {
        if (kept.has("cache")) {
            if (kept.get("cache").asBoolean()) {
                made.withCachingEnabled();
            } else {
                made.withCachingDisabled();
            }
        }
        if (kept.has("retention")) {
            made.withRetention(ms(kept, "retention"));
        }
        return kept.path("log").asBoolean(true) ? made : made.withLoggingDisabled();
    }

    private static <V, S extends StateStore> Materialized<String, V, S> kept(
        final JsonNode kept, final org.apache.kafka.common.serialization.Serde<V> serde) {
        final Materialized<String, V, S> made = kept.has("store")
            ? Materialized.<String, V, S>as(kept.get("store").asText()).withKeySerde(Serdes.String()).withValueSerde(serde)
            : Materialized.with(Serdes.String(), serde);
        return options(kept.has("type") ? made.withStoreType(suppliers(kept.get("type").asText())) : made, kept);
    }

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> rows(final JsonNode kept) {
        if (kept.has("history")) {
            return options(Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore(
                kept.get("store").asText(), ms(kept, "history")))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()), kept);
        }
        return kept(kept, Serdes.String());
    }

    private static ValueJoiner<String, String, String> joiner(final JsonNode step) {
        final boolean deletes = step.path("deletes").asBoolean(false);
        return (left, right) -> unlessDeleted(deletes, mix(left, right));
    }

    private static ValueJoinerWithKey<String, String, String, String> keyJoiner(final JsonNode step) {
        final boolean deletes = step.path("deletes").asBoolean(false);
        return (key, left, right) -> unlessDeleted(deletes, mix(key, left, right));
    }

    private static boolean takesKey(final JsonNode step) {
        return step.path("arguments").asInt() == 3;
    }

    private static JoinWindows within(final JsonNode step) {
        return JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, ms(step, "grace"))
            .after(ms(step, "after")).before(ms(step, "before"));
    }

    private static StreamJoined<String, String, String> streamJoined(final JsonNode step) {
        StreamJoined<String, String, String> made =
            StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
        if (step.has("name")) {
            made = made.withName(step.get("name").asText());
        }
        if (step.has("store")) {
            made = made.withStoreName(step.get("store").asText());
        }
        return step.has("type") ? made.withDslStoreSuppliers(suppliers(step.get("type").asText())) : made;
    }

    private void source(final JsonNode source) {
        final String topic = source.get("topic").asText();
        Consumed<String, String> consumed = Consumed.with(Serdes.String(), Serdes.String());
        if (source.has("shift")) {
            consumed = consumed.withTimestampExtractor(new Shifted(source.get("shift").asLong()));
        }
        if (source.has("name")) {
            consumed = consumed.withName(source.get("name").asText());
        }
        switch (source.get("kind").asText()) {
            case "stream":
                streams.add(builder.stream(topic, consumed));
                break;
            case "table":
                tables.add(source.has("kept")
                    ? builder.table(topic, consumed, rows(source.get("kept"))) : builder.table(topic, consumed));
                break;
            default:
                world = builder.globalTable(topic, consumed, Materialized.as("world-store"));
        }
    }

    private List<String> finish(final JsonNode sinks) {
        final List<String> outputs = new ArrayList<>();
        for (final JsonNode sink : sinks) {
            final int number = sink.asInt() % streams.size();
            if (!outputs.contains("out" + number)) {
                outputs.add("out" + number);
                streams.get(number).to("out" + number, Produced.with(Serdes.String(), Serdes.String()));
            }
        }
        return outputs;
    }

    private void add(final KTable<String, String> table) {
        tables.add(table);
        streams.add(table.toStream());
    }

    private void addWindows(final KTable<Windowed<String>, String> table) {
        streams.add(table.toStream().map((key, value) -> KeyValue.pair(
            key.key(), mix(key.window().start() + ":" + key.window().end(), value))));
    }

    private void apply(final JsonNode step) {
        final int salt = step.path("salt").asInt();
        final KStream<String, String> one = streams.get(step.path("a").asInt() % streams.size());
        final KStream<String, String> two = streams.get(step.path("b").asInt() % streams.size());
        final KTable<String, String> table =
            tables.isEmpty() ? null : tables.get(step.path("t").asInt() % tables.size());
        final KTable<String, String> other =
            tables.isEmpty() ? null : tables.get(step.path("u").asInt() % tables.size());
        final String operator = step.get("op").asText();
        if (operator.startsWith("table_")) {
            tableStep(operator, step, salt, table, other);
        } else if (operator.startsWith("windowed_")) {
            windowedStep(operator, step, salt, one, two);
        } else {
            streamStep(operator, step, salt, one, two, table);
        }
    }

    private void streamStep(
        final String operator, final JsonNode step, final int salt, final KStream<String, String> one,
        final KStream<String, String> two, final KTable<String, String> table) {
        final Named name = named(step);
        final Predicate<String, String> predicate = (key, value) -> chosen(salt, key, value);
        final KeyValueMapper<String, String, String> selector = (key, value) -> keyOf(salt, key, value);
        switch (operator) {
            case "filter":
                streams.add(name == null ? one.filter(predicate) : one.filter(predicate, name));
                break;
            case "filter_not":
                streams.add(name == null ? one.filterNot(predicate) : one.filterNot(predicate, name));
                break;
            case "map": {
                final KeyValueMapper<String, String, KeyValue<String, String>> mapper =
                    (key, value) -> KeyValue.pair(keyOf(salt, key, value), mix(key, value));
                streams.add(name == null ? one.map(mapper) : one.map(mapper, name));
                break;
            }
            case "map_values": {
                final ValueMapperWithKey<String, String, String> mapper = (key, value) -> mix(key, value);
                streams.add(name == null ? one.mapValues(mapper) : one.mapValues(mapper, name));
                break;
            }
            case "flat_map": {
                final KeyValueMapper<String, String, List<KeyValue<String, String>>> mapper = (key, value) ->
                    chosen(salt, key, value)
                        ? List.of(KeyValue.pair(key, mix(value, 1)), KeyValue.pair(keyOf(salt, key, value), value))
                        : List.of();
                streams.add(name == null ? one.flatMap(mapper) : one.flatMap(mapper, name));
                break;
            }
            case "flat_map_values":
                streams.add(one.flatMapValues(value ->
                    chosen(salt, null, value) ? List.of(mix(value, 1), mix(value, 2)) : List.of(mix(value, 3))));
                break;
            case "select_key":
                streams.add(name == null ? one.selectKey(selector) : one.selectKey(selector, name));
                break;
            case "peek":
                streams.add(one.peek((key, value) -> { }));
                break;
            case "merge":
                streams.add(name == null ? one.merge(two) : one.merge(two, name));
                break;
            case "repartition": {
                final KStream<String, String> keyed = one.filter((key, value) -> key != null);
                streams.add(step.has("name")
                    ? keyed.repartition(Repartitioned.as(step.get("name").asText())) : keyed.repartition());
                break;
            }
            case "split": {
                final Map<String, KStream<String, String>> branches =
                    (name == null ? one.split() : one.split(name))
                        .branch(predicate, Branched.as("even"))
                        .branch((key, value) -> value == null, Branched.as("none"))
                        .defaultBranch(Branched.as("rest"));
                for (final String suffix : List.of("even", "none", "rest")) {
                    branches.forEach((key, branch) -> {
                        if (key.endsWith(suffix)) {
                            streams.add(branch);
                        }
                    });
                }
                break;
            }
            case "stream_join":
                streams.add(takesKey(step)
                    ? one.join(two, keyJoiner(step), within(step), streamJoined(step))
                    : one.join(two, joiner(step), within(step), streamJoined(step)));
                break;
            case "stream_left_join":
                streams.add(takesKey(step)
                    ? one.leftJoin(two, keyJoiner(step), within(step), streamJoined(step))
                    : one.leftJoin(two, joiner(step), within(step), streamJoined(step)));
                break;
            case "stream_outer_join":
                streams.add(takesKey(step)
                    ? one.outerJoin(two, keyJoiner(step), within(step), streamJoined(step))
                    : one.outerJoin(two, joiner(step), within(step), streamJoined(step)));
                break;
            case "lookup":
            case "left_lookup": {
                Joined<String, String, String> joined =
                    Joined.with(Serdes.String(), Serdes.String(), Serdes.String());
                if (step.has("name")) {
                    joined = joined.withName(step.get("name").asText());
                }
                if (step.has("grace")) {
                    joined = joined.withGracePeriod(ms(step, "grace"));
                }
                if (takesKey(step)) {
                    streams.add(operator.equals("lookup")
                        ? one.join(table, keyJoiner(step), joined) : one.leftJoin(table, keyJoiner(step), joined));
                } else {
                    streams.add(operator.equals("lookup")
                        ? one.join(table, joiner(step), joined) : one.leftJoin(table, joiner(step), joined));
                }
                break;
            }
            case "global_join":
                streams.add(globalJoin(step, salt, one, name, false));
                break;
            case "global_left_join":
                streams.add(globalJoin(step, salt, one, name, true));
                break;
            case "to_table":
                if (step.has("kept")) {
                    add(name == null ? one.toTable(rows(step.get("kept"))) : one.toTable(name, rows(step.get("kept"))));
                } else {
                    add(name == null ? one.toTable() : one.toTable(name));
                }
                break;
            case "count":
                add(text(counted(step, grouped(step, salt, one))));
                break;
            case "reduce":
                add(reduced(step, salt, grouped(step, salt, one)));
                break;
            case "aggregate":
                add(aggregated(step, salt, grouped(step, salt, one)));
                break;
            case "cogroup": {
                final CogroupedKStream<String, String> all = cogrouped(step, salt, one, two);
                if (step.has("kept")) {
                    add(name == null ? all.aggregate(() -> "", rows(step.get("kept")))
                        : all.aggregate(() -> "", name, rows(step.get("kept"))));
                } else {
                    add(name == null ? all.aggregate(() -> "") : all.aggregate(() -> "", name));
                }
                break;
            }
            case "process": {
                final String store = step.get("store").asText();
                builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore(store), Serdes.String(), Serdes.String()));
                streams.add(name == null ? one.process(() -> new Last(store), store)
                    : one.process(() -> new Last(store), name, store));
                break;
            }
            case "timer": {
                final String store = step.get("store").asText();
                builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.inMemoryKeyValueStore(store), Serdes.String(), Serdes.String()));
                streams.add(one.process(() -> new Gathers(store, PunctuationType.STREAM_TIME), store));
                break;
            }
            case "clock": {
                final String store = step.get("store").asText();
                builder.addStateStore(Stores.keyValueStoreBuilder(
                    Stores.persistentKeyValueStore(store), Serdes.String(), Serdes.String()));
                streams.add(one.process(() -> new Gathers(store, PunctuationType.WALL_CLOCK_TIME), store));
                break;
            }
            case "process_values":
                streams.add(name == null ? one.processValues(Stamp::new) : one.processValues(Stamp::new, name));
                break;
            default:
                throw new IllegalArgumentException("no operator " + operator);
        }
    }

    @SuppressWarnings("deprecation")  // joiners with the key of the stream alone
    private KStream<String, String> globalJoin(
        final JsonNode step, final int salt, final KStream<String, String> one, final Named name, final boolean left) {
        final boolean misses = step.path("misses").asBoolean(false);
        final KeyValueMapper<String, String, String> selector = (key, value) ->
            misses && digest("missed", salt, value) % 5 == 0 ? null : keyOf(salt, key, value);
        if (takesKey(step)) {
            if (left) {
                return name == null ? one.leftJoin(world, selector, keyJoiner(step))
                    : one.leftJoin(world, selector, keyJoiner(step), name);
            }
            return name == null ? one.join(world, selector, keyJoiner(step))
                : one.join(world, selector, keyJoiner(step), name);
        }
        if (step.get("arguments").asInt() == 4) {
            final ValueJoinerWithStreamAndMappedKey<String, String, String, String, String> both =
                (key, mapped, value, row) -> mix(key, mapped, value, row);
            if (left) {
                return name == null ? one.leftJoin(world, selector, both) : one.leftJoin(world, selector, both, name);
            }
            return name == null ? one.join(world, selector, both) : one.join(world, selector, both, name);
        }
        if (left) {
            return name == null ? one.leftJoin(world, selector, joiner(step))
                : one.leftJoin(world, selector, joiner(step), name);
        }
        return name == null ? one.join(world, selector, joiner(step)) : one.join(world, selector, joiner(step), name);
    }

    private static KGroupedStream<String, String> grouped(
        final JsonNode step, final int salt, final KStream<String, String> one) {
        Grouped<String, String> how = Grouped.with(Serdes.String(), Serdes.String());
        if (step.has("group_name")) {
            how = how.withName(step.get("group_name").asText());
        }
        return step.path("rekey").asBoolean(false)
            ? one.groupBy((key, value) -> keyOf(salt, key, value), how) : one.groupByKey(how);
    }

    private static KTable<String, String> text(final KTable<String, Long> counts) {
        return counts.mapValues(count -> "#" + count);
    }

    private static KTable<String, Long> counted(final JsonNode step, final KGroupedStream<String, String> grouped) {
        final Named name = named(step);
        if (step.has("kept")) {
            final Materialized<String, Long, KeyValueStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.Long());
            return name == null ? grouped.count(kept) : grouped.count(name, kept);
        }
        return name == null ? grouped.count() : grouped.count(name);
    }

    private static Reducer<String> reducer(final JsonNode step, final int salt) {
        final boolean deletes = step.path("deletes").asBoolean(false);
        return (old, value) -> unlessDeleted(deletes, mix(salt, old, value));
    }

    private static Aggregator<String, String, String> aggregator(final JsonNode step, final int salt) {
        final boolean deletes = step.path("deletes").asBoolean(false);
        return (key, value, aggregate) -> unlessDeleted(deletes, mix(salt, aggregate, value));
    }

    private static Merger<String, String> merger(final int salt) {
        return (key, first, second) -> mix(salt, key, first, second);
    }

    private static KTable<String, String> reduced(
        final JsonNode step, final int salt, final KGroupedStream<String, String> grouped) {
        final Named name = named(step);
        if (step.has("kept")) {
            return name == null ? grouped.reduce(reducer(step, salt), rows(step.get("kept")))
                : grouped.reduce(reducer(step, salt), name, rows(step.get("kept")));
        }
        return grouped.reduce(reducer(step, salt));
    }

    private static KTable<String, String> aggregated(
        final JsonNode step, final int salt, final KGroupedStream<String, String> grouped) {
        final Named name = named(step);
        final Initializer<String> initial = () -> "";
        if (step.has("kept")) {
            return name == null ? grouped.aggregate(initial, aggregator(step, salt), rows(step.get("kept")))
                : grouped.aggregate(initial, aggregator(step, salt), name, rows(step.get("kept")));
        }
        return grouped.aggregate(initial, aggregator(step, salt));
    }

    private CogroupedKStream<String, String> cogrouped(
        final JsonNode step, final int salt, final KStream<String, String> one, final KStream<String, String> two) {
        final int count = step.get("groups").asInt();
        CogroupedKStream<String, String> all = grouped(step, salt, one).cogroup(aggregator(step, salt));
        if (count > 1) {
            all = all.cogroup(two.groupByKey(Grouped.with(
                "second" + step.get("salt").asInt(), Serdes.String(), Serdes.String())), aggregator(step, salt + 1));
        }
        if (count > 2) {
            all = all.cogroup(streams.get(step.get("c").asInt() % streams.size()).groupByKey(Grouped.with(
                "third" + step.get("salt").asInt(), Serdes.String(), Serdes.String())), aggregator(step, salt + 2));
        }
        return all;
    }

    // Tables.

    private void tableStep(
        final String operator, final JsonNode step, final int salt, final KTable<String, String> table,
        final KTable<String, String> other) {
        final Named name = named(step);
        final boolean stored = step.has("kept");
        final Predicate<String, String> predicate = (key, value) -> chosen(salt, key, value);
        final ValueMapperWithKey<String, String, String> mapper = (key, value) -> value == null ? null : mix(key, value);
        switch (operator) {
            case "table_filter":
                if (stored) {
                    add(name == null ? table.filter(predicate, rows(step.get("kept")))
                        : table.filter(predicate, name, rows(step.get("kept"))));
                } else {
                    add(name == null ? table.filter(predicate) : table.filter(predicate, name));
                }
                break;
            case "table_filter_not":
                add(stored ? table.filterNot(predicate, rows(step.get("kept"))) : table.filterNot(predicate));
                break;
            case "table_map_values":
                if (stored) {
                    add(name == null ? table.mapValues(mapper, rows(step.get("kept")))
                        : table.mapValues(mapper, name, rows(step.get("kept"))));
                } else {
                    add(name == null ? table.mapValues(mapper) : table.mapValues(mapper, name));
                }
                break;
            case "table_transform_values":
                add(stored ? table.transformValues(Transform::new, rows(step.get("kept")))
                    : table.transformValues(Transform::new));
                break;
            case "table_join":
                if (stored) {
                    add(name == null ? table.join(other, joiner(step), rows(step.get("kept")))
                        : table.join(other, joiner(step), name, rows(step.get("kept"))));
                } else {
                    add(name == null ? table.join(other, joiner(step)) : table.join(other, joiner(step), name));
                }
                break;
            case "table_left_join":
                if (stored) {
                    add(name == null ? table.leftJoin(other, joiner(step), rows(step.get("kept")))
                        : table.leftJoin(other, joiner(step), name, rows(step.get("kept"))));
                } else {
                    add(name == null ? table.leftJoin(other, joiner(step)) : table.leftJoin(other, joiner(step), name));
                }
                break;
            case "table_outer_join":
                if (stored) {
                    add(name == null ? table.outerJoin(other, joiner(step), rows(step.get("kept")))
                        : table.outerJoin(other, joiner(step), name, rows(step.get("kept"))));
                } else {
                    add(name == null ? table.outerJoin(other, joiner(step)) : table.outerJoin(other, joiner(step), name));
                }
                break;
            case "table_foreign_join":
                add(foreign(step, salt, table, other, false));
                break;
            case "table_foreign_left_join":
                add(foreign(step, salt, table, other, true));
                break;
            case "table_group_count": {
                final KGroupedTable<String, String> grouped = regrouped(step, salt, table);
                if (stored) {
                    final Materialized<String, Long, KeyValueStore<Bytes, byte[]>> kept =
                        kept(step.get("kept"), Serdes.Long());
                    add(text(name == null ? grouped.count(kept) : grouped.count(name, kept)));
                } else {
                    add(text(name == null ? grouped.count() : grouped.count(name)));
                }
                break;
            }
            case "table_group_reduce": {
                final KGroupedTable<String, String> grouped = regrouped(step, salt, table);
                final Reducer<String> subtractor = (old, value) -> mix("-", old, value);
                add(stored ? grouped.reduce(reducer(step, salt), subtractor, rows(step.get("kept")))
                    : grouped.reduce(reducer(step, salt), subtractor));
                break;
            }
            case "table_group_aggregate": {
                final KGroupedTable<String, String> grouped = regrouped(step, salt, table);
                final Aggregator<String, String, String> subtractor = (key, value, old) -> mix("-", old, value);
                add(stored ? grouped.aggregate(() -> "", aggregator(step, salt), subtractor, rows(step.get("kept")))
                    : grouped.aggregate(() -> "", aggregator(step, salt), subtractor));
                break;
            }
            case "table_suppress": {
                Suppressed<String> suppressed = Suppressed.untilTimeLimit(ms(step, "limit"), buffer(step));
                if (step.has("name")) {
                    suppressed = suppressed.withName(step.get("name").asText());
                }
                streams.add(table.suppress(suppressed).toStream());
                break;
            }
            case "table_to_stream":
                streams.add(name == null ? table.toStream() : table.toStream(name));
                break;
            case "table_to_stream_by":
                streams.add(table.toStream((key, value) -> keyOf(salt, key, value)));
                break;
            default:
                throw new IllegalArgumentException("no operator " + operator);
        }
    }

    private static Suppressed.EagerBufferConfig buffer(final JsonNode step) {
        if (step.has("bytes")) {
            final Suppressed.EagerBufferConfig bytes = Suppressed.BufferConfig.maxBytes(step.get("bytes").asLong());
            return step.has("records") ? bytes.withMaxRecords(step.get("records").asLong()) : bytes;
        }
        return Suppressed.BufferConfig.maxRecords(step.get("records").asLong());
    }

    private static KTable<String, String> foreign(
        final JsonNode step, final int salt, final KTable<String, String> table, final KTable<String, String> other,
        final boolean left) {
        final TableJoined<String, String> joined =
            step.has("name") ? TableJoined.as(step.get("name").asText()) : TableJoined.with(null, null);
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept = step.has("kept")
            ? rows(step.get("kept")) : Materialized.with(null, null);
        if (takesKey(step)) {
            final BiFunction<String, String, String> key = (own, value) ->
                digest("foreign", salt, value) % 7 == 0 ? null : keyOf(salt, own, value);
            return left ? table.leftJoin(other, key, joiner(step), joined, kept)
                : table.join(other, key, joiner(step), joined, kept);
        }
        final Function<String, String> key = value ->
            digest("foreign", salt, value) % 7 == 0 ? null : keyOf(salt, null, value);
        return left ? table.leftJoin(other, key, joiner(step), joined, kept)
            : table.join(other, key, joiner(step), joined, kept);
    }

    private static KGroupedTable<String, String> regrouped(
        final JsonNode step, final int salt, final KTable<String, String> table) {
        Grouped<String, String> how = Grouped.with(Serdes.String(), Serdes.String());
        if (step.has("group_name")) {
            how = how.withName(step.get("group_name").asText());
        }
        final boolean same = step.path("same").asBoolean(false);
        return table.groupBy((key, value) -> KeyValue.pair(same ? key : keyOf(salt, key, value), value), how);
    }

    // Windows.

    private static TimeWindows times(final JsonNode step) {
        final TimeWindows windows = TimeWindows.ofSizeAndGrace(ms(step, "size"), ms(step, "grace"));
        return step.has("advance") ? windows.advanceBy(ms(step, "advance")) : windows;
    }

    private static SlidingWindows sliding(final JsonNode step) {
        return SlidingWindows.ofTimeDifferenceAndGrace(ms(step, "size"), ms(step, "grace"));
    }

    private static SessionWindows sessions(final JsonNode step) {
        return SessionWindows.ofInactivityGapAndGrace(ms(step, "size"), ms(step, "grace"));
    }

    private static UnlimitedWindows unlimited(final JsonNode step) {
        return UnlimitedWindows.of().startOn(Instant.ofEpochMilli(step.get("start").asLong()));
    }

    /** Windows with an offset, or at irregular times. */
    private static Windows<TimeWindow> others(final JsonNode step) {
        final LongPredicate starts = step.get("windows").asText().equals("offset")
            ? start -> Math.floorMod(start - step.get("offset").asLong(), step.path("advance").asLong(step.get("size").asLong())) == 0
            : start -> start % 5 == 0 || start % 5 == 2;
        return new Others(starts, step.get("size").asLong(), step.get("grace").asLong());
    }

    private static EmitStrategy strategy(final JsonNode step) {
        return step.path("close").asBoolean(false) ? EmitStrategy.onWindowClose() : EmitStrategy.onWindowUpdate();
    }

    private void windowedStep(
        final String operator, final JsonNode step, final int salt, final KStream<String, String> one,
        final KStream<String, String> two) {
        final String windows = step.get("windows").asText();
        KTable<Windowed<String>, String> made;
        if (operator.equals("windowed_cogroup")) {
            made = windowedCogroup(step, salt, windows, cogrouped(step, salt, one, two));
        } else if (windows.equals("session")) {
            made = ofSessions(operator, step, salt,
                grouped(step, salt, one).windowedBy(sessions(step)).emitStrategy(strategy(step)));
        } else {
            final KGroupedStream<String, String> grouped = grouped(step, salt, one);
            final TimeWindowedKStream<String, String> windowed;
            if (windows.equals("time")) {
                windowed = grouped.windowedBy(times(step));
            } else if (windows.equals("sliding")) {
                windowed = grouped.windowedBy(sliding(step));
            } else {
                windowed = windows.equals("unlimited")
                    ? grouped.windowedBy(unlimited(step)) : grouped.windowedBy(others(step));
            }
            made = ofTimes(operator, step, salt, windows.equals("time") || windows.equals("sliding")
                ? windowed.emitStrategy(strategy(step)) : windowed);
        }
        if (step.path("regroup").asBoolean(false)) {
            final Aggregator<String, String, String> subtractor = (key, value, old) -> mix("-", old, value);
            add(made.groupBy((key, value) -> KeyValue.pair(keyOf(salt, key.key(), value), value),
                Grouped.with(Serdes.String(), Serdes.String()))
                .aggregate(() -> "", (key, value, old) -> mix("+", old, value), subtractor,
                    Materialized.with(Serdes.String(), Serdes.String())));
        }
        if (step.has("suppress")) {
            final Suppressed.StrictBufferConfig buffer = step.get("suppress").asInt() == 0
                ? Suppressed.BufferConfig.unbounded()
                : Suppressed.BufferConfig.maxRecords(step.get("suppress").asLong()).shutDownWhenFull();
            Suppressed<Windowed<?>> suppressed = Suppressed.untilWindowCloses(buffer);
            if (step.has("suppress_name")) {
                suppressed = suppressed.withName(step.get("suppress_name").asText());
            }
            made = made.suppress(suppressed);
        }
        addWindows(made);
    }

    private static KTable<Windowed<String>, String> windowedText(final KTable<Windowed<String>, Long> counts) {
        return counts.mapValues(count -> "#" + count);
    }

    private static KTable<Windowed<String>, String> ofTimes(
        final String operator, final JsonNode step, final int salt, final TimeWindowedKStream<String, String> windowed) {
        final Named name = named(step);
        final boolean stored = step.has("kept");
        switch (operator) {
            case "windowed_count":
                if (stored) {
                    final Materialized<String, Long, WindowStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.Long());
                    return windowedText(name == null ? windowed.count(kept) : windowed.count(name, kept));
                }
                return windowedText(name == null ? windowed.count() : windowed.count(name));
            case "windowed_reduce": {
                if (stored) {
                    final Materialized<String, String, WindowStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.String());
                    return name == null ? windowed.reduce(reducer(step, salt), kept)
                        : windowed.reduce(reducer(step, salt), name, kept);
                }
                return windowed.reduce(reducer(step, salt));
            }
            default: {
                if (stored) {
                    final Materialized<String, String, WindowStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.String());
                    return name == null ? windowed.aggregate(() -> "", aggregator(step, salt), kept)
                        : windowed.aggregate(() -> "", aggregator(step, salt), name, kept);
                }
                return windowed.aggregate(() -> "", aggregator(step, salt));
            }
        }
    }

    private static KTable<Windowed<String>, String> ofSessions(
        final String operator, final JsonNode step, final int salt, final SessionWindowedKStream<String, String> windowed) {
        final Named name = named(step);
        final boolean stored = step.has("kept");
        switch (operator) {
            case "windowed_count":
                if (stored) {
                    final Materialized<String, Long, SessionStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.Long());
                    return windowedText(name == null ? windowed.count(kept) : windowed.count(name, kept));
                }
                return windowedText(name == null ? windowed.count() : windowed.count(name));
            case "windowed_reduce": {
                if (stored) {
                    final Materialized<String, String, SessionStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.String());
                    return name == null ? windowed.reduce(reducer(step, salt), kept)
                        : windowed.reduce(reducer(step, salt), name, kept);
                }
                return windowed.reduce(reducer(step, salt));
            }
            default: {
                if (stored) {
                    final Materialized<String, String, SessionStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.String());
                    return name == null ? windowed.aggregate(() -> "", aggregator(step, salt), merger(salt), kept)
                        : windowed.aggregate(() -> "", aggregator(step, salt), merger(salt), name, kept);
                }
                return windowed.aggregate(() -> "", aggregator(step, salt), merger(salt));
            }
        }
    }

    private static KTable<Windowed<String>, String> windowedCogroup(
        final JsonNode step, final int salt, final String windows, final CogroupedKStream<String, String> all) {
        final Named name = named(step);
        if (windows.equals("session")) {
            final Materialized<String, String, SessionStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.String());
            return name == null ? all.windowedBy(sessions(step)).aggregate(() -> "", merger(salt), kept)
                : all.windowedBy(sessions(step)).aggregate(() -> "", merger(salt), name, kept);
        }
        final Materialized<String, String, WindowStore<Bytes, byte[]>> kept = kept(step.get("kept"), Serdes.String());
        if (windows.equals("time")) {
            return name == null ? all.windowedBy(times(step)).aggregate(() -> "", kept)
                : all.windowedBy(times(step)).aggregate(() -> "", name, kept);
        }
        if (windows.equals("sliding")) {
            return name == null ? all.windowedBy(sliding(step)).aggregate(() -> "", kept)
                : all.windowedBy(sliding(step)).aggregate(() -> "", name, kept);
        }
        if (!windows.equals("unlimited")) {
            return name == null ? all.windowedBy(others(step)).aggregate(() -> "", kept)
                : all.windowedBy(others(step)).aggregate(() -> "", name, kept);
        }
        return name == null ? all.windowedBy(unlimited(step)).aggregate(() -> "", kept)
            : all.windowedBy(unlimited(step)).aggregate(() -> "", name, kept);
    }

    // Objects.

    /** Adds some milliseconds to a record's timestamp. */
    private static final class Shifted implements TimestampExtractor {
        private final long shift;

        private Shifted(final long shift) {
            this.shift = shift;
        }

        @Override
        public long extract(final ConsumerRecord<Object, Object> record, final long partitionTime) {
            return record.timestamp() + shift;
        }
    }

    /** Windows of one size that begin at the times of a predicate. */
    private static final class Others extends Windows<TimeWindow> {
        private final LongPredicate starts;
        private final long size;
        private final long grace;

        private Others(final LongPredicate starts, final long size, final long grace) {
            this.starts = starts;
            this.size = size;
            this.grace = grace;
        }

        @Override
        public Map<Long, TimeWindow> windowsFor(final long timestamp) {
            final Map<Long, TimeWindow> windows = new LinkedHashMap<>();
            for (long start = Math.max(0, timestamp - size + 1); start <= timestamp; start++) {
                if (starts.test(start)) {
                    windows.put(start, new TimeWindow(start, start + size));
                }
            }
            return windows;
        }

        @Override
        public long size() {
            return size;
        }

        @Override
        public long gracePeriodMs() {
            return grace;
        }
    }

    /** Deletes some rows and changes the others. */
    private static final class Transform implements ValueTransformerWithKey<String, String, String> {
        @Override
        public void init(final ProcessorContext context) { }

        @Override
        public String transform(final String key, final String value) {
            return value == null || digest("transformed", value) % 4 == 0 ? null : mix(key, value);
        }

        @Override
        public void close() { }
    }

    /** Forwards each value with the last one of its key. */
    private static final class Last extends ContextualProcessor<String, String, String, String> {
        private final String name;

        private Last(final String name) {
            this.name = name;
        }

        @Override
        public void process(final Record<String, String> record) {
            if (record.key() != null) {
                final KeyValueStore<String, String> store = context().getStateStore(name);
                final String before = store.get(record.key());
                store.put(record.key(), record.value());
                context().forward(record.withValue(mix(before, record.value())));
            }
        }
    }

    /** Keeps the last value of each key and forwards all of them when its timer rings. */
    private static final class Gathers extends ContextualProcessor<String, String, String, String> {
        private final String name;
        private final PunctuationType time;

        private Gathers(final String name, final PunctuationType time) {
            this.name = name;
            this.time = time;
        }

        @Override
        public void init(final org.apache.kafka.streams.processor.api.ProcessorContext<String, String> context) {
            super.init(context);
            context.schedule(Duration.ofMillis(10), time, this::forwardAll);
        }

        @Override
        public void process(final Record<String, String> record) {
            if (record.key() != null) {
                final KeyValueStore<String, String> store = context().getStateStore(name);
                store.put(record.key(), mix(record.value(), record.timestamp()));
            }
        }

        private void forwardAll(final long now) {
            final KeyValueStore<String, String> store = context().getStateStore(name);
            final List<KeyValue<String, String>> rows = new ArrayList<>();
            try (KeyValueIterator<String, String> all = store.all()) {
                all.forEachRemaining(rows::add);
            }
            for (final KeyValue<String, String> row : rows) {
                store.delete(row.key);
                context().forward(new Record<>(row.key, row.value, now));
            }
        }
    }

    /** Forwards each value with its timestamp mixed in. */
    private static final class Stamp extends ContextualFixedKeyProcessor<String, String, String> {
        @Override
        public void process(final FixedKeyRecord<String, String> record) {
            context().forward(record.withValue(mix(record.value(), record.timestamp())));
        }
    }
}
