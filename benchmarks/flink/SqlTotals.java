import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * Generated rows, GROUP BY key, count and sum, no output: Flink SQL's side of the throughput benchmark.
 *
 * <p>Arguments as for KeyedTotals; SQL's own options come as table.* behind "flink.", such as mini-batches.
 */
public final class SqlTotals {
    private static final int PUBLISH_EVERY_ROWS = 1 << 10;
    private static final AtomicLong ROWS = new AtomicLong();

    public static void main(String[] args) throws Exception {
        Cluster.Arguments given = new Cluster.Arguments(args);
        Configuration configuration = Cluster.configuration(given);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(configuration.get(TaskManagerOptions.NUM_TASK_SLOTS));
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        DataStream<Long> numbers = env.fromSequence(0, Long.MAX_VALUE - 1).map(new Counted()).returns(Types.LONG);
        tables.createTemporaryView("numbers", tables.fromDataStream(numbers).as("v"));
        String key = "MOD(v, " + given.number("keys", 10_000) + ")";
        if (given.text("key_type", "long").equals("string")) {
            key = "CONCAT('key-', CAST(" + key + " AS STRING))";
        }
        Table totals = tables.sqlQuery(
            "SELECT k, COUNT(*), SUM(v) FROM (SELECT " + key + " AS k, v FROM numbers) GROUP BY k");
        tables.toChangelogStream(totals).sinkTo(new DiscardingSink<>());
        JobGraph job = env.getStreamGraph().getJobGraph();
        try (MiniCluster cluster = Cluster.start(configuration)) {
            cluster.submitJob(job).get();
            JobID id = job.getJobID();
            Cluster.measureRows(cluster, id, given, ROWS::get);
            cluster.cancelJob(id).get();
        }
        System.exit(0);
    }

    /** Counts what was read: SQL's aggregation counts nothing itself, and little is in between. */
    private static final class Counted implements MapFunction<Long, Long> {
        private transient int unpublished;

        @Override
        public Long map(Long value) {
            if (++unpublished == PUBLISH_EVERY_ROWS) {
                ROWS.addAndGet(unpublished);
                unpublished = 0;
            }
            return value;
        }
    }
}
