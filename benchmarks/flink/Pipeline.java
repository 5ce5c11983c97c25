import java.io.Serializable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimitedSourceReader;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Source, map, shuffle, a slow keyed operator, shuffle, count, no output: Flink's side of the benchmarks of checkpoints.
 *
 * <p>The arguments are those of `benchmarks.systems.pipeline`. Says in lines of JSON what the caller must know.
 */
public final class Pipeline {
    private static final long SAMPLE_EVERY_MS = 500;
    private static final AtomicLong PULLED = new AtomicLong();
    private static final AtomicLong ROWS = new AtomicLong();
    private static final AtomicLong COUNTED = new AtomicLong();
    private static final AtomicLong FIRST_ROW_NS = new AtomicLong();
    private static volatile boolean isToFail;

    public static void main(String[] args) throws Exception {
        Cluster.Arguments given = new Cluster.Arguments(args);
        Configuration configuration = Cluster.configuration(given);
        JobGraph job = job(configuration, given);
        QueuedBytes queued = new QueuedBytes();
        try (MiniCluster cluster = Cluster.start(configuration, queued.setup())) {
            cluster.submitJob(job).get();
            measure(cluster, job.getJobID(), queued, given);
            cluster.cancelJob(job.getJobID()).get();
        }
        System.exit(0);
    }

    private static JobGraph job(Configuration configuration, Cluster.Arguments given) {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        int slots = configuration.get(TaskManagerOptions.NUM_TASK_SLOTS);
        env.setParallelism(slots);
        env.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        double rate = given.real("rows_per_second", 0);
        Schedule schedule = new Schedule(rate / slots, given.real("quiet_share", 1.0),
            given.real("peak_from_s", 0), given.real("peak_to_s", Double.MAX_VALUE));
        long keys = given.number("keys", 1000);
        env.fromSource(new Numbers(rate > 0 ? schedule : null), WatermarkStrategy.noWatermarks(), "numbers")
            .map(new WithPayload(keys, (int) given.number("row_bytes", 200), given.real("hot_share", 0)))
            .returns(Types.TUPLE(Types.LONG, Types.STRING))
            .keyBy(row -> row.f0, Types.LONG)
            .process(new Slow(given.number("delay_us", 0) * 1000))
            .returns(Types.TUPLE(Types.LONG, Types.LONG))
            .keyBy(row -> row.f0, Types.LONG)
            .process(new Count())
            .returns(Types.TUPLE(Types.LONG, Types.LONG))
            .sinkTo(new DiscardingSink<>());
        return env.getStreamGraph().getJobGraph();
    }

    private static void measure(MiniCluster cluster, JobID job, QueuedBytes queued, Cluster.Arguments given)
            throws Exception {
        while (ROWS.get() == 0) {
            stopIfOver(cluster, job);
            Thread.sleep(5);
        }
        Thread.sleep(given.milliseconds("warm_up_s"));
        long failAtNs = given.has("fail_at_s")
            ? System.nanoTime() + given.milliseconds("fail_at_s") * 1_000_000 : Long.MAX_VALUE;
        long firstRows = ROWS.get();
        long firstPulled = PULLED.get();
        long firstCounted = COUNTED.get();
        long startedNs = System.nanoTime();
        long startedMs = System.currentTimeMillis();
        long endsNs = startedNs + given.milliseconds("measure_s") * 1_000_000;
        long collectedMs = collectedMs();
        Cluster.say("measuring", "");
        double failedAtS = -1;
        for (long tick = 1; System.nanoTime() < endsNs; tick++) {
            while (System.nanoTime() < Math.min(endsNs, startedNs + tick * SAMPLE_EVERY_MS * 1_000_000)) {
                Thread.sleep(2);
                if (failedAtS < 0 && System.nanoTime() >= failAtNs) {
                    FIRST_ROW_NS.set(0);
                    failedAtS = since(startedNs);
                    if (given.text("fail", "operator").equals("operator")) {
                        isToFail = true;
                    } else {
                        cluster.terminateTaskManager(0).get();
                        cluster.startTaskManager();
                    }
                }
            }
            stopIfOver(cluster, job);
            Cluster.say("sample", "\"at_s\": " + since(startedNs) + ", \"rows\": " + (ROWS.get() - firstRows)
                + ", \"pulled\": " + (PULLED.get() - firstPulled) + ", \"queued_bytes\": " + queued.now());
        }
        long rows = ROWS.get() - firstRows;
        Cluster.say("measured", "\"rows\": " + rows + ", \"seconds\": " + since(startedNs)
            + ", \"pulled\": " + (PULLED.get() - firstPulled) + ", \"counted\": " + (COUNTED.get() - firstCounted)
            + ", \"gc_ms\": " + (collectedMs() - collectedMs)
            + ", \"failed_at_s\": " + failedAtS
            + ", \"first_row_at_s\": " + (FIRST_ROW_NS.get() - startedNs) / 1e9
            + ", \"checkpoints\": " + Cluster.checkpoints(cluster, job, startedMs));
    }

    private static void stopIfOver(MiniCluster cluster, JobID job) throws Exception {
        if (cluster.getJobStatus(job).get().isGloballyTerminalState()) {
            throw new IllegalStateException("The job ended by itself.");
        }
    }

    private static double since(long startedNs) {
        return (System.nanoTime() - startedNs) / 1e9;
    }

    private static long collectedMs() {
        return java.lang.management.ManagementFactory.getGarbageCollectorMXBeans().stream()
            .mapToLong(java.lang.management.GarbageCollectorMXBean::getCollectionTime).sum();
    }

    /** When the n-th row of a subtask is due: at a part of the rate before and after the peak, at all of it within. */
    private record Schedule(double rate, double quietShare, double peakFromS, double peakToS) implements Serializable {
        double dueS(long row) {
            double quiet = rate * quietShare;
            double beforePeak = quiet * peakFromS;
            if (row < beforePeak) {
                return row / quiet;
            }
            double inPeak = rate * (peakToS - peakFromS);
            if (row < beforePeak + inPeak) {
                return peakFromS + (row - beforePeak) / rate;
            }
            return peakToS + (row - beforePeak - inPeak) / quiet;
        }
    }

    private static final class Numbers extends NumberSequenceSource {
        private final Schedule schedule;

        Numbers(Schedule schedule) {
            super(0, Long.MAX_VALUE - 1);
            this.schedule = schedule;
        }

        @Override
        public SourceReader<Long, NumberSequenceSplit> createReader(SourceReaderContext context) {
            SourceReader<Long, NumberSequenceSplit> reader = super.createReader(context);
            return schedule == null ? reader : new RateLimitedSourceReader<>(reader, new Paced(schedule));
        }
    }

    private static final class Paced implements RateLimiter<NumberSequenceSource.NumberSequenceSplit> {
        private final Schedule schedule;
        private final long startedNs = System.nanoTime();
        private long row;

        Paced(Schedule schedule) {
            this.schedule = schedule;
        }

        @Override
        public CompletionStage<Void> acquire(int requested) {
            row += requested;
            long waitNs = (long) (schedule.dueS(row) * 1e9) - (System.nanoTime() - startedNs);
            return waitNs <= 0 ? CompletableFuture.completedFuture(null) : CompletableFuture.runAsync(
                () -> {}, CompletableFuture.delayedExecutor(waitNs, TimeUnit.NANOSECONDS));
        }
    }

    private static final class WithPayload implements MapFunction<Long, Tuple2<Long, String>>, Serializable {
        private final long keys;
        private final String payload;
        private final long hotOf;

        WithPayload(long keys, int rowBytes, double hotShare) {
            this.keys = keys;
            // A row is its key and its text.
            this.payload = "x".repeat(rowBytes - Long.BYTES);
            this.hotOf = Math.round(hotShare * 100);
        }

        @Override
        public Tuple2<Long, String> map(Long value) {
            PULLED.incrementAndGet();
            return new Tuple2<>(value % 100 < hotOf ? 0 : value % keys, payload);
        }
    }

    /**
     * Counts per key, and waits for a while at each row. What a timer woke too late is made up for by the next rows, so
     * that a row takes as long in every system.
     */
    private static final class Slow extends KeyedProcessFunction<Long, Tuple2<Long, String>, Tuple2<Long, Long>> {
        private static final long MADE_UP_FOR_NS = 5_000_000;
        private final long delayNs;
        private transient long dueNs;
        private transient ValueState<Long> count;
        private transient boolean hasRun;

        Slow(long delayNs) {
            this.delayNs = delayNs;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<Long, String> row, Context context, Collector<Tuple2<Long, Long>> out)
                throws Exception {
            if (isToFail) {
                isToFail = false;
                throw new IllegalStateException("the benchmark asked for it");
            }
            dueNs = Math.max(dueNs, System.nanoTime() - MADE_UP_FOR_NS) + delayNs;
            for (long leftNs; delayNs > 0 && (leftNs = dueNs - System.nanoTime()) > 0; ) {
                LockSupport.parkNanos(leftNs);
            }
            Long before = count.value();
            count.update(before == null ? 1L : before + 1);
            out.collect(new Tuple2<>(row.f0 % 100, 1L));
            ROWS.incrementAndGet();
            if (!hasRun) {
                hasRun = true;
                FIRST_ROW_NS.compareAndSet(0, System.nanoTime());
            }
        }
    }

    private static final class Count extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple2<Long, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<Long, Long> row, Context context, Collector<Tuple2<Long, Long>> out)
                throws Exception {
            Long before = count.value();
            long after = before == null ? row.f1 : before + row.f1;
            count.update(after);
            COUNTED.incrementAndGet();
            out.collect(new Tuple2<>(row.f0, after));
        }
    }
}
