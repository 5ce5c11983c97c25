"""Operators from their specs. What only one kind of operator needs is imported when that kind is built."""

from typing import assert_never

from tidegate.operators.contract import Operator
from tidegate.plan.nodes import EventTimeKey, UdfShape
from tidegate.plan.physical import (
    AggregateSpec,
    AsyncMapSpec,
    ConnectSpec,
    DeduplicateSpec,
    EvalPythonSpec,
    EventTimeColumnSpec,
    ExpandSpec,
    FilterSpec,
    GenerateSpec,
    MapInArrowSpec,
    OperatorSpec,
    PartialAggregateSpec,
    ProjectSpec,
    StaticJoinSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
    WatermarkSpec,
)


def build_operator(spec: OperatorSpec) -> Operator:
    match spec:
        case ProjectSpec() | FilterSpec():
            from tidegate.operators.project_filter import KernelOperator

            return KernelOperator(spec)
        case MapInArrowSpec():
            from tidegate.operators.map_in_arrow import MapInArrowOperator

            return MapInArrowOperator(spec)
        case AsyncMapSpec():
            from tidegate.operators.async_map import AsyncMapOperator

            return AsyncMapOperator(spec)
        case EvalPythonSpec():
            from tidegate.operators.python_udf import PythonIteratorUdfOperator, PythonUdfOperator

            return PythonUdfOperator(spec) if spec.shape is UdfShape.BATCH else PythonIteratorUdfOperator(spec)
        case EventTimeColumnSpec():
            from tidegate.operators.event_time_column import EventTimeColumnOperator

            return EventTimeColumnOperator(spec)
        case PartialAggregateSpec():
            from tidegate.operators.partial_aggregate import PartialAggregateOperator

            return PartialAggregateOperator(spec)
        case AggregateSpec():
            if spec.event_time is not None and spec.event_time.key is EventTimeKey.SESSION:
                from tidegate.operators.session_aggregate import SessionAggregateOperator

                return SessionAggregateOperator(spec)
            from tidegate.operators.aggregate import AggregateOperator

            return AggregateOperator(spec)
        case TransformWithStateSpec():
            from tidegate.operators.transform_with_state import TransformWithStateOperator

            return TransformWithStateOperator(spec)
        case WatermarkSpec():
            from tidegate.operators.watermark import WatermarkOperator

            return WatermarkOperator(spec)
        case ConnectSpec():
            from tidegate.operators.connect import ConnectOperator

            return ConnectOperator(spec)
        case GenerateSpec():
            from tidegate.operators.row_makers import ExplodeOperator

            return ExplodeOperator(spec)
        case ExpandSpec():
            from tidegate.operators.row_makers import ExpandOperator

            return ExpandOperator(spec)
        case DeduplicateSpec():
            from tidegate.operators.deduplicate import DeduplicateOperator

            return DeduplicateOperator(spec)
        case StreamJoinSpec():
            from tidegate.operators.stream_join import StreamJoinOperator

            return StreamJoinOperator(spec)
        case StaticJoinSpec():
            from tidegate.operators.static_join import StaticJoinOperator

            return StaticJoinOperator(spec)
        case _:
            assert_never(spec)
