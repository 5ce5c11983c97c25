"""Broadcast state as a table: of the subtask that has the least left to apply, as a restore takes it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import RECEIVER, SENDER, Captured, StoredJob, plan_of
from tidegate.coordinator.checkpoint_tables import open_table
from tidegate.model.elements import Batch
from tidegate.model.ids import ChannelId, EdgeId
from tidegate.operators.broadcast_state import BroadcastStates, NamedBroadcastState
from tidegate.plan.nodes import DeclaredState, RightSide, StateShape
from tidegate.plan.physical import (
    FIRST_INPUT,
    SECOND_INPUT,
    BroadcastPartitioning,
    ConnectSpec,
    Edge,
    HashPartitioning,
    JobPlan,
)
from tidegate.state.contract import Section
from tidegate.storage.store import LocalFiles

RULE, ROW = pa.schema([("rule", pa.int64())]), pa.schema([("k", pa.int64()), ("v", pa.int64())])
RULES = DeclaredState("rules", StateShape.BROADCAST, pa.schema([("n", pa.int64())]), RULE)
STREAM, BROADCAST = EdgeId(0), EdgeId(1)


def plan() -> JobPlan:
    spec = ConnectSpec(b"", RightSide.BROADCAST, 1, 0, ROW, RULE, ROW, states=(RULES,))
    edges = (
        Edge(STREAM, SENDER, RECEIVER, HashPartitioning(1), ROW, FIRST_INPUT),
        Edge(BROADCAST, SENDER, RECEIVER, BroadcastPartitioning(), RULE, SECOND_INPUT),
    )
    return replace(plan_of(spec, schema=ROW, parallelism=2), edges=edges)


def applied(*rules: int) -> list[Section]:
    states = BroadcastStates()
    for rule in rules:
        with states.writable():
            NamedBroadcastState("rules", states).put((rule,), (10 * rule,))
    return [states.snapshot()]


def rules(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], schema=RULE))


def shown(folder: Path, channels: Mapping[ChannelId, Captured]) -> list[dict[str, Any]]:
    """Subtask 0 has applied the first rule, subtask 1 has applied two."""
    StoredJob(plan(), {0: applied(1), 1: applied(1, 2)}, channels=channels).write(LocalFiles(folder))
    table = open_table({"path": str(folder), "table": "state", "state": "rules"})
    return [row for at in range(table.partitions) for batch in table.read(at) for row in batch.to_pylist()]


def test_the_one_that_has_the_least_left_is_shown_and_no_other(tmp_path: Path) -> None:
    behind, ahead = ChannelId(BROADCAST, 0, 0), ChannelId(BROADCAST, 0, 1)
    found = shown(tmp_path, {behind: Captured((rules(2), rules(3)), first=1), ahead: Captured((rules(3),), first=2)})
    assert [(row["rule"], row["n"], row["subtask"]) for row in found] == [(1, 10, 1), (2, 20, 1)]
    assert {row["key_group"] for row in found} == {None}


@pytest.mark.parametrize("edge", [None, STREAM])
def test_what_is_in_flight_elsewhere_does_not_count(tmp_path: Path, edge: EdgeId | None) -> None:
    row = Batch(pa.record_batch([pa.array([1]), pa.array([2])], schema=ROW))
    channels = {} if edge is None else {ChannelId(edge, 0, 0): Captured((row,), first=1)}
    assert [found["subtask"] for found in shown(tmp_path, channels)] == [0]
