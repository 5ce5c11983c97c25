import java.io.Serializable;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.checkpoint.CheckpointStatsSnapshot;
import org.apache.flink.runtime.checkpoint.CheckpointStatsStatus;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Generated rows, a shuffle by key, count and sum per key, no output: Flink's side of the throughput benchmark.
 *
 * <p>Called with the kind of key (long or string), the number of keys, slots, the folder for checkpoints and either
 * "measure" with seconds of warm-up and of measurement, or "check" with a number of rows. Says in lines of JSON what
 * the caller must know.
 */
public final class KeyedTotals {
    private static final int PUBLISH_EVERY_ROWS = 1 << 10;
    private static final AtomicLong ROWS = new AtomicLong();
    private static final Map<Object, Tuple2<Long, Long>> RESULTS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        boolean isText = args[0].equals("string");
        long keys = Long.parseLong(args[1]);
        int slots = Integer.parseInt(args[2]);
        boolean isCheck = args[4].equals("check");
        long last = isCheck ? Long.parseLong(args[5]) - 1 : Long.MAX_VALUE - 1;
        Configuration configuration = configuration(slots, args[3]);
        JobGraph job = isText
            ? job(configuration, last, Types.STRING, new TextKeys(keys), isCheck)
            : job(configuration, last, Types.LONG, new LongKeys(keys), isCheck);
        try (MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(slots)
                .build())) {
            cluster.start();
            cluster.submitJob(job).get();
            if (isCheck) {
                cluster.requestJobResult(job.getJobID()).get().toJobExecutionResult(KeyedTotals.class.getClassLoader());
                printResults();
            } else {
                measure(cluster, job.getJobID(), seconds(args[5]), seconds(args[6]));
                cluster.cancelJob(job.getJobID()).get();
            }
        }
        System.exit(0);
    }

    private static Configuration configuration(int slots, String checkpoints) {
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        configuration.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + checkpoints);
        configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
        configuration.set(CheckpointingOptions.CHECKPOINTING_CONSISTENCY_MODE, CheckpointingMode.EXACTLY_ONCE);
        configuration.set(PipelineOptions.OBJECT_REUSE, true);
        configuration.set(TaskManagerOptions.NUM_TASK_SLOTS, slots);
        // All that one machine's cores can use: its default of 64 MB is meant for larger jobs' shares.
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(128));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(128));
        for (var host : new String[] {"jobmanager.bind-host", "taskmanager.bind-host", "taskmanager.host"}) {
            configuration.setString(host, "127.0.0.1");
        }
        configuration.set(JobManagerOptions.ADDRESS, "127.0.0.1");
        configuration.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
        configuration.set(RestOptions.ADDRESS, "127.0.0.1");
        configuration.set(RestOptions.BIND_PORT, "0");
        return configuration;
    }

    private static <K> JobGraph job(
            Configuration configuration,
            long last,
            TypeInformation<K> keyType,
            MapFunction<Long, Tuple2<K, Long>> keyed,
            boolean isCheck) {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(configuration.get(TaskManagerOptions.NUM_TASK_SLOTS));
        env.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        DataStream<Tuple3<K, Long, Long>> totals = env.fromSequence(0, last)
            .map(keyed)
            .returns(Types.TUPLE(keyType, Types.LONG))
            .keyBy(row -> row.f0, keyType)
            .process(new Totals<K>())
            .returns(Types.TUPLE(keyType, Types.LONG, Types.LONG));
        if (isCheck) {
            totals.map(new Remember<K>()).returns(Types.LONG).sinkTo(new DiscardingSink<>());
        } else {
            totals.sinkTo(new DiscardingSink<>());
        }
        return env.getStreamGraph().getJobGraph();
    }

    private static void measure(MiniCluster cluster, JobID job, long warmUpMs, long measureMs) throws Exception {
        while (ROWS.get() == 0) {
            if (cluster.getJobStatus(job).get().isTerminalState()) {
                throw new IllegalStateException("The job ended before its first row.");
            }
            Thread.sleep(5);
        }
        Thread.sleep(warmUpMs);
        long firstRows = ROWS.get();
        long startedNs = System.nanoTime();
        System.out.println("{\"event\": \"measuring\"}");
        Thread.sleep(measureMs);
        long rows = ROWS.get() - firstRows;
        double elapsed = (System.nanoTime() - startedNs) / 1e9;
        CheckpointStatsSnapshot stats = cluster.getExecutionGraph(job).get().getCheckpointStatsSnapshot();
        String checkpoints = stats.getHistory().getCheckpoints().stream()
            .filter(checkpoint -> checkpoint.getStatus() == CheckpointStatsStatus.COMPLETED)
            .map(checkpoint -> Long.toString(checkpoint.getEndToEndDuration()))
            .collect(Collectors.joining(", "));
        System.out.println("{\"event\": \"measured\", \"rows\": " + rows + ", \"seconds\": " + elapsed
            + ", \"checkpoints_ms\": [" + checkpoints + "]}");
    }

    private static void printResults() {
        long rows = 0;
        long total = 0;
        long digest = 0;
        for (var entry : RESULTS.entrySet()) {
            String key = entry.getKey().toString();
            long number = Long.parseLong(key.substring(key.indexOf('-') + 1));
            rows += entry.getValue().f0;
            total += entry.getValue().f1;
            digest += (number + 1) * (31 * entry.getValue().f0 + entry.getValue().f1);
        }
        System.out.println("{\"event\": \"checked\", \"groups\": " + RESULTS.size() + ", \"rows\": " + rows
            + ", \"total\": " + total + ", \"digest\": " + digest + "}");
    }

    private static long seconds(String text) {
        return Math.round(Double.parseDouble(text) * 1000);
    }

    private static final class LongKeys implements MapFunction<Long, Tuple2<Long, Long>>, Serializable {
        private final long keys;

        LongKeys(long keys) {
            this.keys = keys;
        }

        @Override
        public Tuple2<Long, Long> map(Long value) {
            return new Tuple2<>(value % keys, value);
        }
    }

    private static final class TextKeys implements MapFunction<Long, Tuple2<String, Long>>, Serializable {
        private final long keys;

        TextKeys(long keys) {
            this.keys = keys;
        }

        @Override
        public Tuple2<String, Long> map(Long value) {
            return new Tuple2<>("key-" + value % keys, value);
        }
    }

    /** Keeps count and sum in one value that is changed in place, which heap state allows. */
    private static final class Totals<K> extends KeyedProcessFunction<K, Tuple2<K, Long>, Tuple3<K, Long, Long>> {
        private transient ValueState<Tuple2<Long, Long>> state;
        private transient Tuple3<K, Long, Long> result;
        private transient int unpublished;

        @Override
        public void open(OpenContext context) {
            state = getRuntimeContext().getState(
                new ValueStateDescriptor<>("totals", Types.TUPLE(Types.LONG, Types.LONG)));
            result = new Tuple3<>();
        }

        @Override
        public void processElement(Tuple2<K, Long> row, Context context, Collector<Tuple3<K, Long, Long>> out)
                throws Exception {
            Tuple2<Long, Long> totals = state.value();
            if (totals == null) {
                totals = new Tuple2<>(0L, 0L);
            }
            totals.f0 += 1;
            totals.f1 += row.f1;
            state.update(totals);
            result.f0 = row.f0;
            result.f1 = totals.f0;
            result.f2 = totals.f1;
            out.collect(result);
            if (++unpublished == PUBLISH_EVERY_ROWS) {
                ROWS.addAndGet(unpublished);
                unpublished = 0;
            }
        }
    }

    /** Only in a check: keeps the newest totals of each key, of all subtasks, which share this process. */
    private static final class Remember<K> implements MapFunction<Tuple3<K, Long, Long>, Long>, Serializable {
        @Override
        public Long map(Tuple3<K, Long, Long> totals) {
            synchronized (RESULTS) {
                RESULTS.put(totals.f0, new Tuple2<>(totals.f1, totals.f2));
            }
            return totals.f1;
        }
    }
}
