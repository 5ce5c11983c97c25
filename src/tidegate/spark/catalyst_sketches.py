"""Reads `approx_count_distinct`, with the tables by which Spark's own class corrects its estimates."""

import json
import math
from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan import kernels
from tidegate.plan.expressions import Call, Literal
from tidegate.plan.nodes import AggregateCall, AggregateFunction, SketchTables
from tidegate.spark.catalyst_expressions import Scope, read_expression
from tidegate.spark.catalyst_trees import ExpressionTree

_SEED = "42"
# Of these precisions Spark has tables.
_LEAST_PRECISION = 4
_GREATEST_PRECISION = 18


def read_sketch(tree: ExpressionTree, scope: Scope) -> AggregateCall:
    argument = read_expression(tree.children[0], scope)
    if "XxHash64" not in kernels.supported_functions():
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}`: it has no kernel for XxHash64.")
    if pa.types.is_floating(argument.type):
        argument = Call("NormalizeNaNAndZero", (argument,), argument.type, ansi=False)
    hashed = Call("XxHash64", (argument,), pa.int64(), ansi=False, settings=(("seed", _SEED),))
    is_null = Call("IsNull", (argument,), pa.bool_(), ansi=False)
    # A null is not counted; its hash would be the seed.
    counted = Call("If", (is_null, Literal(None, pa.int64()), hashed), pa.int64(), ansi=False)
    kernels.check_supported(counted)
    tables = _tables(tree)
    return AggregateCall(AggregateFunction.APPROX_COUNT_DISTINCT, (counted,), pa.int64(), ansi=False, sketch=tables)


def _tables(tree: ExpressionTree) -> SketchTables:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    jvm: Any = context._jvm
    helper = jvm.org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper
    # Spark says by how much 2^precision registers err: 1.04 / sqrt(registers).
    registers = (1.04 / float(helper(float(tree.fields["relativeSD"])).trueRsd())) ** 2
    precision = round(math.log2(registers))
    if precision > _GREATEST_PRECISION:
        raise UnsupportedPlan(f"Tidegate does not run `{tree.sql()}`: allow an error of at least 0.0022.")
    at = precision - _LEAST_PRECISION

    def numbers(table: Any) -> tuple[float, ...]:
        # As one text: each number for itself would be a call to the JVM.
        return tuple(json.loads(jvm.java.util.Arrays.toString(table)))

    return SketchTables(
        precision,
        numbers(helper.RAW_ESTIMATE_DATA()[at]),
        numbers(helper.BIAS_DATA()[at]),
        float(helper.THRESHOLDS()[at]),
    )
