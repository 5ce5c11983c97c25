"""Everything that touches Spark: reading Catalyst's plans, launching the barrier stage, Java, user code."""
