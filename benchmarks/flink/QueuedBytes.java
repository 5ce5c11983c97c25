import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.Metric;
import org.apache.flink.metrics.MetricConfig;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.reporter.MetricReporter;
import org.apache.flink.runtime.metrics.ReporterSetup;
import org.apache.flink.runtime.metrics.filter.ReporterFilter;

/**
 * What waits between tasks, by Flink's own gauges. In one process a channel has its rows at the sender, from where the
 * receiver takes them: the receiver's gauge is always 0 there.
 */
final class QueuedBytes implements MetricReporter {
    private final Set<Gauge<?>> gauges = ConcurrentHashMap.newKeySet();

    List<ReporterSetup> setup() {
        return List.of(
            new ReporterSetup("queued", new MetricConfig(), this, ReporterFilter.getNoOpFilter(), Map.of()));
    }

    long now() {
        return gauges.stream().mapToLong(gauge -> ((Number) gauge.getValue()).longValue()).sum();
    }

    @Override
    public void open(MetricConfig config) {}

    @Override
    public void close() {}

    @Override
    public void notifyOfAddedMetric(Metric metric, String name, MetricGroup group) {
        if (name.equals("outputQueueSize") && metric instanceof Gauge<?> gauge) {
            gauges.add(gauge);
        }
    }

    @Override
    public void notifyOfRemovedMetric(Metric metric, String name, MetricGroup group) {
        gauges.remove(metric);
    }
}
