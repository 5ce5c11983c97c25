import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongSupplier;
import java.util.stream.Collectors;
import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.configuration.WebOptions;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.checkpoint.AbstractCheckpointStats;
import org.apache.flink.runtime.metrics.MetricRegistryConfiguration;
import org.apache.flink.runtime.metrics.MetricRegistryImpl;
import org.apache.flink.runtime.metrics.ReporterSetup;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;

/** What Flink's jobs have in common: their arguments, the cluster's configuration, and what is said of checkpoints. */
final class Cluster {
    private static final int REMEMBERED_CHECKPOINTS = 10_000;

    private Cluster() {}

    /** Arguments are name=value. */
    static final class Arguments {
        private final Map<String, String> values = new HashMap<>();

        Arguments(String[] args) {
            for (String arg : args) {
                int at = arg.indexOf('=');
                values.put(arg.substring(0, at), arg.substring(at + 1));
            }
        }

        boolean has(String name) {
            return values.containsKey(name);
        }

        String text(String name, String otherwise) {
            return values.getOrDefault(name, otherwise);
        }

        long number(String name, long otherwise) {
            return Long.parseLong(values.getOrDefault(name, Long.toString(otherwise)));
        }

        double real(String name, double otherwise) {
            return Double.parseDouble(values.getOrDefault(name, Double.toString(otherwise)));
        }

        long milliseconds(String name) {
            return Math.round(Double.parseDouble(values.get(name)) * 1000);
        }
    }

    /** Arguments that begin with "flink." are options of Flink's. */
    static Configuration configuration(Arguments given) {
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        configuration.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + given.text("folder", ""));
        configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL,
            Duration.ofMillis(given.number("interval_ms", 1000)));
        configuration.set(CheckpointingOptions.CHECKPOINTING_CONSISTENCY_MODE, CheckpointingMode.EXACTLY_ONCE);
        configuration.set(PipelineOptions.OBJECT_REUSE, true);
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ZERO);
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, (int) given.number("restarts", 0));
        configuration.set(TaskManagerOptions.NUM_TASK_SLOTS, (int) given.number("slots", 2));
        configuration.set(WebOptions.CHECKPOINTS_HISTORY_SIZE, REMEMBERED_CHECKPOINTS);
        // All that one machine's cores can use: its default of 64 MB is meant for larger jobs' shares.
        MemorySize network = MemorySize.ofMebiBytes(given.number("network_mib", 128));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MIN, network);
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MAX, network);
        for (var host : new String[] {"jobmanager.bind-host", "taskmanager.bind-host", "taskmanager.host"}) {
            configuration.setString(host, "127.0.0.1");
        }
        configuration.set(JobManagerOptions.ADDRESS, "127.0.0.1");
        configuration.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
        configuration.set(RestOptions.ADDRESS, "127.0.0.1");
        configuration.set(RestOptions.BIND_PORT, "0");
        given.values.forEach((name, value) -> {
            if (name.startsWith("flink.")) {
                configuration.setString(name.substring("flink.".length()), value);
            }
        });
        return configuration;
    }

    static MiniCluster start(Configuration configuration) throws Exception {
        return start(configuration, List.of());
    }

    static MiniCluster start(Configuration configuration, List<ReporterSetup> reporters) throws Exception {
        MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
            .setConfiguration(configuration)
            .setNumTaskManagers(1)
            .setNumSlotsPerTaskManager(configuration.get(TaskManagerOptions.NUM_TASK_SLOTS))
            .build()) {
            @Override
            protected MetricRegistryImpl createMetricRegistry(Configuration configuration, long mostBytes) {
                return new MetricRegistryImpl(
                    MetricRegistryConfiguration.fromConfiguration(configuration, mostBytes), reporters);
            }
        };
        cluster.start();
        return cluster;
    }

    /** As JSON: every checkpoint that was triggered at or after that moment. */
    static String checkpoints(MiniCluster cluster, JobID job, long sinceMs) throws Exception {
        return cluster.getExecutionGraph(job).get().getCheckpointStatsSnapshot().getHistory().getCheckpoints().stream()
            .filter(checkpoint -> checkpoint.getTriggerTimestamp() >= sinceMs)
            .map(checkpoint -> json(checkpoint, sinceMs))
            .collect(Collectors.joining(", ", "[", "]"));
    }

    private static String json(AbstractCheckpointStats checkpoint, long sinceMs) {
        long endedMs = checkpoint.getStatus().isInProgress()
            ? System.currentTimeMillis() : checkpoint.getTriggerTimestamp() + checkpoint.getEndToEndDuration();
        return "{\"id\": " + checkpoint.getCheckpointId()
            + ", \"status\": \"" + checkpoint.getStatus().name().toLowerCase() + "\""
            + ", \"kind\": \"" + (checkpoint.isUnalignedCheckpoint() ? "unaligned" : "aligned") + "\""
            + ", \"at_s\": " + (checkpoint.getTriggerTimestamp() - sinceMs) / 1000.0
            + ", \"ms\": " + (endedMs - checkpoint.getTriggerTimestamp())
            + ", \"inflight_bytes\": " + checkpoint.getPersistedData()
            + ", \"new_inflight_bytes\": " + checkpoint.getPersistedData()
            + ", \"state_bytes\": " + checkpoint.getStateSize() + "}";
    }

    /** Waits for the first row and the warm-up, then says how many rows came in how many seconds. */
    static void measureRows(MiniCluster cluster, JobID job, Arguments given, LongSupplier counted) throws Exception {
        while (counted.getAsLong() == 0) {
            if (cluster.getJobStatus(job).get().isTerminalState()) {
                throw new IllegalStateException("The job ended before its first row.");
            }
            Thread.sleep(5);
        }
        Thread.sleep(given.milliseconds("warm_up_s"));
        long firstRows = counted.getAsLong();
        long startedNs = System.nanoTime();
        long startedMs = System.currentTimeMillis();
        say("measuring", "");
        Thread.sleep(given.milliseconds("measure_s"));
        long rows = counted.getAsLong() - firstRows;
        double elapsed = (System.nanoTime() - startedNs) / 1e9;
        say("measured", "\"rows\": " + rows + ", \"seconds\": " + elapsed
            + ", \"checkpoints\": " + checkpoints(cluster, job, startedMs));
    }

    static void say(String event, String facts) {
        System.out.println("{\"event\": \"" + event + "\"" + (facts.isEmpty() ? "" : ", " + facts) + "}");
    }
}
