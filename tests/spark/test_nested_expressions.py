"""Arrays, maps, structs and lambdas give what Spark gives, or are refused: never a different answer."""

import logging
import re

import pytest
from pyspark.sql import SparkSession

from tests.spark.kernel_answers import by_kernels, by_spark, differences, printed
from tests.spark.nested_rows import TABLE, offer_nested
from tidegate.model.errors import UnsupportedPlan
from tidegate.spark.catalyst import read_plan

pytestmark = pytest.mark.spark

# PySpark logs every error that a test provokes, with the JVM's stack.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)

SUPPORTED = [
    # columns and conditionals
    "a", "s", "m", "z", "deep", "n", "if(b, a, a2)", "if(b, s, s2)", "coalesce(a, a2)", "coalesce(s, s2)",
    "coalesce(m, map('q', 1L))", "case when b then z else null end", "a is null", "s is not null",
    "if(k > 0, slice(a, 1, 2), a2)", "nvl(s.y, 'none')",
    # comparison
    "a = a2", "s = s2", "s <=> s2", "a <=> a2", "a < a2", "s < s2", "s >= s2", "a >= a2", "d = d", "n = n", "z = z",
    "s in (s2, named_struct('x', 1L, 'y', 'a'))", "a in (array(1L, 2L, 3L), a2)", "deep = deep", "s <> s2",
    "a > array(3L)",
    # structs
    "s.x", "s.y", "deep.p.x", "deep.q", "z.y", "z.x", "named_struct('u', k, 'v', c)", "struct(k, s.x, a)",
    "struct(s.*, k as more)", "named_struct('o', s).o.y",
    # elements
    "a[0]", "a[i]", "a[5]", "n[0][0]", "element_at(a, 1)", "element_at(a, -1)", "element_at(a, i)",
    "try_element_at(a, 9)",
    "get(a, 1)", "get(a, i)", "m['a']", "m[c]", "element_at(m, 'a')", "element_at(m, c)", "mi[k]", "mi[1]", "z[0].y",
    "try_element_at(m, 'nope')",
    # maps
    "map_keys(m)", "map_values(m)", "map_entries(m)", "map_keys(mi)", "map(k, c)", "map('a', k, 'b', 2L)", "map(c, k)",
    "map_from_arrays(a, t)", "map_from_arrays(array(1, 2), array('x', c))", "size(m)", "map_contains_key(m, 'a')",
    "map_from_arrays(array_distinct(a), array_distinct(a))",
    # array functions
    "size(a)", "cardinality(t)", "array(k, 1L, null)", "array(c, 'x')", "array(s, s2)", "array(a, a2)",
    "array_contains(a, 3L)", "array_contains(a, k)", "array_contains(t, 'a')", "array_contains(n, array(1L))",
    "array_contains(z, named_struct('x', 1L, 'y', 'a'))", "array_contains(d, double('nan'))", "array_contains(de, 3)",
    "array_position(a, 3L)", "array_position(t, c)", "array_position(d, double('nan'))", "array_remove(a, 3L)",
    "array_remove(a, k)", "array_remove(t, 'x')", "array_min(a)", "array_max(a)", "array_min(d)", "array_max(d)",
    "array_min(t)", "array_max(t)", "array_max(z)", "array_min(n)", "array_max(de)", "sort_array(a)",
    "sort_array(a, false)",
    "sort_array(t)", "sort_array(d)", "sort_array(d, false)", "sort_array(z)", "sort_array(n, false)", "sort_array(de)",
    "array_sort(a)", "array_sort(t)", "array_sort(d)", "array_sort(z)", "array_distinct(a)", "array_distinct(t)",
    "array_distinct(z)", "array_distinct(de)", "array_union(a, a2)", "array_intersect(a, a2)", "array_except(a, a2)",
    "array_union(t, array('a', null, c))", "array_except(z, array(s))", "arrays_overlap(a, a2)",
    "arrays_overlap(t, array(c))", "slice(a, 1, 2)", "slice(a, -2, 2)", "slice(a, 3, 10)", "slice(t, 2, 0)",
    "slice(a, i, 1)", "a || a2", "concat(a, a2, array(k))", "concat(t, array(c))", "flatten(n)", "reverse(a)",
    "reverse(t)",
    "array_join(t, ',')", "array_join(t, c)", "array_join(t, '-', '?')", "array_join(t, '-', c)", "array_repeat(c, 2)",
    "array_repeat(a, i)", "sequence(1, 5)", "sequence(i, 3)", "sequence(5, i)", "sequence(0L, cast(i as long) * 2, 2L)",
    "sequence(1, 10, i)", "arrays_zip(a, t)", "arrays_zip(a, a2, d)", "array_compact(a)", "array_size(a)",
    "array_append(a, k)", "array_prepend(a, k)", "array_insert(a, 2, k)", "array_insert(a, 7, k)",
    "array_insert(a, -1, k)",
    "array_insert(a, -6, k)", "array_insert(a, i, k)", "array_insert(t, -2, c)", "array_insert(a, -4, null)",
    "map_concat(m, map('other', k))", "map_concat(m, m)", "map_from_entries(z)", "map_from_entries(array(s, null))",
    "map_from_entries(array(named_struct('q', k, 'v', a), named_struct('q', 0L, 'v', a2)))",
    "map_from_entries(map_entries(m))",
    # casts
    "cast(a as array<string>)", "cast(a as array<int>)", "cast(s as struct<p: double, q: boolean>)",
    "cast(m as map<string, double>)", "cast(mi as map<string, string>)", "cast(n as array<array<double>>)",
    "cast(z as array<struct<x: int, y: string>>)", "cast(t as array<int>)",
    # lambdas
    "transform(a, x -> x + 1)", "transform(a, (x, j) -> j)", "transform(a, x -> x % 3 + i)",
    "transform(t, x -> x || c)",
    "transform(n, x -> size(x))", "transform(n, x -> transform(x, y -> y = k))", "transform(z, x -> x.y)",
    "transform(n, (x, j) -> transform(x, y -> y + j))", "transform(a, x -> struct(x, k))", "transform(d, x -> x / 2)",
    "filter(a, x -> x > 1)", "filter(a, x -> x is null)", "filter(a, (x, j) -> j = 0)", "filter(t, x -> x = c)",
    "filter(z, x -> x.x > 7)", "exists(a, x -> x > 2)", "exists(a, x -> x = k)", "exists(a, x -> 10 div x > 4)",
    "exists(t, x -> x is null)", "forall(a, x -> x > 0)", "forall(a, x -> 10 div x < 4)",
    "forall(t, x -> x is not null)",
    "aggregate(a, 0L, (s, x) -> s + coalesce(x, 0L) % 10)", "aggregate(a, k, (s, x) -> if(x > s, x, s))",
    "aggregate(t, '', (s, x) -> concat(s, coalesce(x, '?')), s -> concat(s, '!'))", "aggregate(a, 0L, (s, x) -> s + x)",
    "zip_with(a, a2, (x, y) -> coalesce(x, y))", "zip_with(a, t, (x, y) -> struct(x, y))",
    "map_filter(m, (q, v) -> v > 1)", "transform_values(m, (q, v) -> v is null)",
    "transform_keys(m, (q, v) -> q || '!')",
    "transform_keys(m, (q, v) -> 1)", "transform_values(mi, (q, v) -> concat(v, c))",
    "array_sort(filter(a, x -> x is not null))", "size(filter(z, x -> x.y = c))",
    # literals
    "array(1, 2, null)", "named_struct('a', 1, 'b', array(1.5D, null))", "map('a', 1, 'b', null)",
    "array(array('x'), null)",
    "array(date'2020-01-01', null)", "array(1.25, 2.5)", "array(X'00ff')", "array(timestamp'2020-01-01 00:00:00')",
    "map(1, named_struct('q', true))", "array(struct(1, 'é'))", "cast(null as array<int>)",
    "array(float('nan'), -0.0F)",
    "cast(null as struct<a: int>)", "array(9223372036854775807, -9223372036854775808L)", "interval 36 hours",
    "array(interval 1 day)",
]  # fmt: skip

FILTERS = [
    "size(a) > 2", "a[0] = 1 and size(a) > 0", "s.x > 0", "array_contains(a, 3L)", "m['a'] > 0", "s = s2",
    "exists(a, x -> x > 2)", "s.y is not null and length(s.y) = 1", "size(filter(t, x -> x = c)) = 0",
]  # fmt: skip

REFUSED = {
    "array_sort(a, (l, r) -> cast(r - l as int))": "ArraySort with a comparator",
    "array_distinct(d)": "ArrayDistinct on floating point numbers",
    "array_union(d, d)": "ArrayUnion on floating point numbers",
    "sort_array(transform(a, x -> 1.5D))": "SortArray on floating point numbers",
    "transform(t, x -> soundex(x))": "SoundEx",
    "concat(a, array(k + 1))": "Concat with arguments that may raise",
    "from_json(c, 'x binary')": "JsonToStructs",
    "parse_json(c)": "parseJson",
    "map_concat(m, map(c, k))": "MapConcat with arguments that may raise",
    "cast(a as string)": "Cast",
    "make_interval(1)": "type interval",
    "map(1.5D, k, -0.0D, 2L)": "CreateMap with floating point keys",
    "interval '1-1' year to month * i": "MultiplyYMInterval",
}


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    offer_nested(spark, tmp_path_factory.mktemp("nested"))


def test_a_nested_expression_gives_what_spark_gives(spark: SparkSession, tables: None, mode: str) -> None:
    assert differences(spark, SUPPORTED, "nested", TABLE) == {}


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_on_nested_values_keeps_what_spark_keeps(
    spark: SparkSession, tables: None, mode: str, condition: str
) -> None:
    expected = by_spark(spark, f"SELECT * FROM nested WHERE {condition}")
    actual = by_kernels(spark, f"SELECT * FROM stream_nested WHERE {condition}", TABLE)
    assert printed(actual) == printed(expected)


@pytest.mark.parametrize(("expression", "named"), REFUSED.items())
def test_what_has_no_kernel_is_refused_by_name(spark: SparkSession, tables: None, expression: str, named: str) -> None:
    with pytest.raises(UnsupportedPlan, match=re.escape(named)):
        read_plan(spark.sql(f"SELECT {expression} AS x FROM stream_nested"))
