"""Sources and sinks: the contracts, the connectors, and the registry that finds one by Spark's format name."""
