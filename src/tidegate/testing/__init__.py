"""The public test kit: a simulated cluster, a clock, a store and crashes that tests command, and conformance suites.

May import anything; nothing imports it.
"""

from tidegate.testing.faulty_store import FaultyStore, RandomFaults, Result, ScriptedFaults, Slow, StoreOperation
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.cluster import SimCluster
from tidegate.testing.simulation.scenario import Scenario, scenario_of
from tidegate.testing.simulation.steps import CrashAt, Step
from tidegate.testing.simulation.world import SimulationFailed
from tidegate.testing.sink_suite import SinkSuite
from tidegate.testing.source_suite import SourceSuite
from tidegate.testing.state_suite import StateBackendSuite
from tidegate.testing.store_suite import StoreSuite

__all__ = [
    "CrashAt",
    "FaultyStore",
    "ManualClock",
    "RandomFaults",
    "Result",
    "Scenario",
    "ScriptedFaults",
    "SimCluster",
    "SimulationFailed",
    "SinkSuite",
    "Slow",
    "SourceSuite",
    "StateBackendSuite",
    "Step",
    "StoreOperation",
    "StoreSuite",
    "scenario_of",
]
