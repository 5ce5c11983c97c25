import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Generated rows, a shuffle by key, count and sum per key, no output: Flink's side of the throughput benchmark.
 *
 * <p>Arguments: key_type (long or string), keys, and either warm_up_s and measure_s, or check_rows. Says in lines of
 * JSON what the caller must know.
 */
public final class KeyedTotals {
    private static final int PUBLISH_EVERY_ROWS = 1 << 10;
    private static final AtomicLong ROWS = new AtomicLong();
    private static final Map<Object, Tuple2<Long, Long>> RESULTS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        Cluster.Arguments given = new Cluster.Arguments(args);
        boolean isText = given.text("key_type", "long").equals("string");
        long keys = given.number("keys", 10_000);
        boolean isCheck = given.has("check_rows");
        long last = isCheck ? given.number("check_rows", 0) - 1 : Long.MAX_VALUE - 1;
        Configuration configuration = Cluster.configuration(given);
        JobGraph job = isText
            ? job(configuration, last, Types.STRING, new TextKeys(keys), isCheck)
            : job(configuration, last, Types.LONG, new LongKeys(keys), isCheck);
        try (MiniCluster cluster = Cluster.start(configuration)) {
            cluster.submitJob(job).get();
            if (isCheck) {
                cluster.requestJobResult(job.getJobID()).get().toJobExecutionResult(KeyedTotals.class.getClassLoader());
                Cluster.say("checked", results());
            } else {
                Cluster.measureRows(cluster, job.getJobID(), given, ROWS::get);
                cluster.cancelJob(job.getJobID()).get();
            }
        }
        System.exit(0);
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

    private static String results() {
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
        return "\"groups\": " + RESULTS.size() + ", \"rows\": " + rows
            + ", \"total\": " + total + ", \"digest\": " + digest;
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
