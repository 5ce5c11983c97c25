"""What a source has to know of the plan it stands in: the columns that are used, and how fast it may read.

Written into the options of the plan's scans, before anything is opened; it changes nothing else of the plan.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.plan.expressions import Column, Expression
from tidegate.plan.nodes import Aggregate, AggregateCall, Filter, Named, Node, Project, Scan

FILE_FORMATS = ("csv", "json", "parquet", "text")
MAX_ROWS_PER_S = "tidegate.maxrowspersecond"
READ_COLUMNS = "readcolumns"
# Unlike the empty text, which says that nothing is known: no column is called so.
NO_COLUMN = "\0"
CHECKPOINT_INTERVAL_MS = "checkpointintervalms"


def with_scan_settings(root: Node, *, checkpoint_interval_ms: float, max_rows_per_s: int | None) -> Node:
    def settle(scan: Scan, used: frozenset[int] | None) -> Scan:
        options: dict[str, str] = dict(scan.options)
        if scan.format in FILE_FORMATS:
            options[CHECKPOINT_INTERVAL_MS] = str(checkpoint_interval_ms)
            if used is not None and len(used) < len(scan.schema):
                options[READ_COLUMNS] = "\0".join(scan.schema.names[index] for index in sorted(used)) or NO_COLUMN
        if max_rows_per_s is not None:
            options[MAX_ROWS_PER_S] = str(max_rows_per_s)
        return dataclasses.replace(scan, options=options)

    def visit(node: Any, used: frozenset[int] | None) -> Any:
        """`used`: the columns of the node's output that are used above it; None for all."""
        if isinstance(node, Scan):
            return settle(node, used)
        below = _used_below(node, used)
        changed: dict[str, Any] = {}
        for name, child in _children(node):
            changed[name] = tuple(visit(c, below) for c in child) if isinstance(child, tuple) else visit(child, below)
        return dataclasses.replace(node, **changed)

    settled: Node = visit(root, None)
    return settled


def _used_below(node: Any, used: frozenset[int] | None) -> frozenset[int] | None:
    """As Spark prunes: what stands right above the source, or above filters of it, says what is read."""
    match node:
        case Project(columns=columns):
            return _columns_in(columns)
        case Aggregate(keys=keys, calls=calls):
            # Where rows are only counted, Spark's projection has no columns and is not in the plan.
            return _columns_in((*keys, *(_of_call(call) for call in calls)))
        case Filter(condition=condition):
            return None if used is None else used | _columns_in(condition)
        case Named():
            return used
        case _:
            return None


def _of_call(call: AggregateCall) -> tuple[Expression | None, ...]:
    """What it takes of a row; arguments of DISTINCT are over the distinct values."""
    return *(call.distinct or call.arguments), call.condition


def _columns_in(expression: Any) -> frozenset[int]:
    if isinstance(expression, Column):
        return frozenset({expression.index})
    if isinstance(expression, tuple):
        return frozenset().union(*(_columns_in(part) for part in expression))
    if dataclasses.is_dataclass(expression) and not isinstance(expression, type):
        parts = (getattr(expression, field.name) for field in dataclasses.fields(expression))
        return frozenset().union(*(_columns_in(part) for part in parts))
    return frozenset()


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        is_several = isinstance(value, tuple) and value and all(isinstance(part, Node) for part in value)
        if is_several or isinstance(value, Node):
            yield field.name, value


def max_rows_per_s(options: Mapping[str, str]) -> int | None:
    text = options.get(MAX_ROWS_PER_S)
    return None if text is None else int(text)
