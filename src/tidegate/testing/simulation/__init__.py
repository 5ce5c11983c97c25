"""Whole jobs in one thread under a seeded scheduler: production worker, coordinator and storage in a false world.

`run_seed(seed)` plays one; `python -m tidegate.testing.simulation --seeds 200` plays many and prints what failed.
"""

from tidegate.testing.simulation.run import RunFailure, RunReport, run_seed

__all__ = ["RunFailure", "RunReport", "run_seed"]
