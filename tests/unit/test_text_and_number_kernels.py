"""Kernels of strings, decimals, casts and TRY mode without Spark: slices, refusals, errors that name a row."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal, Try
from tidegate.plan.kernels import check_supported, compile_expression

TEXT, INT, LONG = pa.string(), pa.int32(), pa.int64()
S, T = Column(0, "s", TEXT), Column(1, "t", TEXT)


def texts(s: list[str | None], t: list[str | None] | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(s, TEXT), pa.array(t or s, TEXT)], names=["s", "t"])


def call(function: str, *arguments: Expression, type: pa.DataType = TEXT, ansi: bool = True) -> Call:
    return Call(function, arguments, type, ansi)


def text(value: str | None) -> Literal:
    return Literal(value, TEXT)


def integer(value: int) -> Literal:
    return Literal(value, INT)


def values(expression: Expression, batch: pa.RecordBatch) -> list[object]:
    check_supported(expression)
    result = compile_expression(expression)(batch)
    assert result.type == expression.type
    result.validate(full=True)
    return list(result.to_pylist())


EACH = [
    (call("Upper", S), ["ÉA", None, "B ÑX", ""]),
    (call("InitCap", S), ["Éa", None, "B Ñx", ""]),
    (call("Substring", S, integer(2), integer(2)), ["a", None, " ñ", ""]),
    (call("SubstringIndex", S, text(" "), integer(1)), ["éa", None, "b", ""]),
    (call("SubstringIndex", S, text(" "), integer(-1)), ["éa", None, "ñx", ""]),
    (call("StringInstr", S, text("ñ"), type=INT), [0, None, 3, 0]),
    (call("StringLPad", S, integer(3), text("*")), ["*éa", None, "b ñ", "***"]),
    (call("StringTranslate", S, text("a "), text("_")), ["é_", None, "bñx", ""]),
    (call("Hex", S), ["C3A961", None, "6220C3B178", ""]),
    (call("Ascii", S, type=INT), [0xE9, None, ord("b"), 0]),
    (call("Like", S, text("%x"), type=pa.bool_()), [False, None, True, False]),
    (call("RegExpExtract", S, text("(.)$"), integer(1)), ["a", None, "x", ""]),
    (call("RegExpReplace", S, text("[^a-z]"), text("-"), integer(1)), ["-a", None, "b--x", ""]),
    (call("Contains", S, T, type=pa.bool_()), [True, None, True, True]),
]


@pytest.mark.parametrize(("expression", "expected"), EACH, ids=lambda value: getattr(value, "function", ""))
def test_a_slice_of_a_batch_is_read_from_its_offset(expression: Call, expected: list[object]) -> None:
    batch = texts(["away", "éa", None, "b ñx", "", "gone"]).slice(1, 4)
    assert values(expression, batch) == expected


@pytest.mark.parametrize("expression", [expression for expression, _ in EACH], ids=lambda value: value.function)
def test_an_empty_batch_gives_an_empty_column(expression: Call) -> None:
    assert values(expression, texts([])) == []


def test_bytes_that_are_no_utf8_are_kept_by_a_cast_and_refused_by_what_counts_characters() -> None:
    binary = Column(0, "b", pa.binary())
    batch = pa.RecordBatch.from_arrays([pa.array([b"a\xff"])], names=["b"])
    cast = Cast(binary, TEXT, True, "UTC")
    assert compile_expression(cast)(batch).cast(pa.binary()).to_pylist() == [b"a\xff"]
    for function in ("Upper", "Reverse"):
        with pytest.raises(UserCodeFailure, match=f"{function} met a string that is not valid UTF-8"):
            compile_expression(call(function, cast))(batch)


def test_a_capital_sigma_beside_an_unknown_letter_is_an_error() -> None:
    assert values(call("Lower", S), texts(["ΑΣ", "ΣΑ"])) == ["ας", "σα"]
    with pytest.raises(UserCodeFailure, match="capital sigma"):
        compile_expression(call("Lower", S))(texts(["Α\u0295Σ"]))


@pytest.mark.parametrize("ansi", [True, False])
def test_decimals_are_exact_beyond_what_arrow_can_hold(ansi: bool) -> None:
    wide = pa.decimal128(38, 18)
    a = Column(0, "a", wide)
    batch = pa.RecordBatch.from_arrays([pa.array([Decimal("1.5"), None, Decimal("-3E-18")], wide)], names=["a"])
    product = call("Multiply", a, a, type=pa.decimal128(38, 6), ansi=ansi)
    assert values(product, batch) == [Decimal("2.250000"), None, Decimal("0.000000")]
    quotient = call("Divide", a, Literal(Decimal(7), wide), type=pa.decimal128(38, 6), ansi=ansi)
    assert values(quotient, batch) == [Decimal("0.214286"), None, Decimal("0.000000")]


def test_a_decimal_that_overflows_raises_in_ansi_mode_and_is_null_otherwise() -> None:
    narrow = pa.decimal128(2, 0)
    a = Column(0, "a", narrow)
    batch = pa.RecordBatch.from_arrays([pa.array([Decimal(99), Decimal(1), None], narrow)], names=["a"])
    total = call("Add", a, a, type=narrow)
    with pytest.raises(UserCodeFailure, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        compile_expression(total)(batch)
    assert values(call("Add", a, a, type=narrow, ansi=False), batch) == [None, Decimal(2), None]


def test_try_gives_null_where_the_function_itself_would_raise() -> None:
    a, b = Column(0, "a", LONG), Column(1, "b", LONG)
    batch = pa.RecordBatch.from_arrays([pa.array([2**63 - 1, 5, None]), pa.array([1, 0, 1])], names=["a", "b"])
    assert values(Try(call("Add", a, b, type=LONG)), batch) == [None, 5, None]
    assert values(Try(call("Remainder", a, b, type=LONG)), batch) == [0, None, None]
    assert values(Try(Cast(a, INT, True, "UTC")), batch) == [None, 5, None]


def test_try_does_not_cover_what_the_arguments_raise() -> None:
    a, b = Column(0, "a", LONG), Column(1, "b", LONG)
    batch = pa.RecordBatch.from_arrays([pa.array([5]), pa.array([0])], names=["a", "b"])
    guarded = Try(call("Add", call("IntegralDivide", a, b, type=LONG), a, type=LONG))
    with pytest.raises(UserCodeFailure, match="DIVIDE_BY_ZERO"):
        compile_expression(guarded)(batch)


def test_try_of_a_function_that_has_no_such_mode_is_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="Upper in TRY mode"):
        check_supported(Try(call("Upper", S)))


def test_a_cast_names_the_first_row_that_fails() -> None:
    cast = Cast(S, pa.decimal128(3, 1), True, "UTC")
    with pytest.raises(UserCodeFailure, match=r"\[NUMERIC_VALUE_OUT_OF_RANGE\].*One of them is 1000\."):
        compile_expression(cast)(texts(["1", "1000", "x"]))
    with pytest.raises(UserCodeFailure, match=r"\[CAST_INVALID_INPUT\].*One of them is x\."):
        compile_expression(cast)(texts(["1", "x", "1000"]))


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (1.0, "1.0"), (0.001, "0.001"), (0.0009, "9.0E-4"), (9999999.0, "9999999.0"), (1e7, "1.0E7"),
        (-1.5e-10, "-1.5E-10"), (123456789.125, "1.23456789125E8"), (5e-324, "4.9E-324"), (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (-0.0, "-0.0"), (100.0, "100.0"), (1.7976931348623157e308, "1.7976931348623157E308"), (-2e300, "-2.0E300"),
    ],
)  # fmt: skip
def test_a_double_is_printed_in_javas_layout(number: float, printed: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([number])], names=["d"])
    assert values(Cast(Column(0, "d", pa.float64()), TEXT, True, "UTC"), batch) == [printed]


@pytest.mark.parametrize(
    ("number", "rounded"),
    [(2.675, 2.68), (-2.675, -2.68), (-0.001, 0.0), (1e300, 1e300), (1.005, 1.01), (0.1 + 0.2, 0.3), (None, None)],
)
def test_a_double_is_rounded_by_the_decimal_it_is_printed_as(number: float | None, rounded: float | None) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([number], pa.float64())], names=["d"])
    expression = call("Round", Column(0, "d", pa.float64()), integer(2), type=pa.float64())
    assert list(map(repr, values(expression, batch))) == [repr(rounded)]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_constants_are_put_before_and_behind_a_value_as_joining_would(kind: pa.DataType) -> None:
    def of(text: str) -> Any:
        return text if pa.types.is_string(kind) else text.encode()

    column = Column(0, "s", kind)
    texts = ["", "é", None, "a longer text, well beyond a word"]
    batch = pa.record_batch([pa.array([None if text is None else of(text) for text in texts], kind)], names=["s"])

    def given(*parts: str | None) -> list[Any]:
        """The column stands where a part is empty; 'null' is a constant."""
        constants = {"null": Literal(None, kind)}
        arguments = [column if part == "" else constants.get(str(part), Literal(of(str(part)), kind)) for part in parts]
        result = compile_expression(Call("Concat", tuple(arguments), kind, ansi=True))(batch)
        assert result.type == kind
        return list(result.to_pylist())

    def joined(before: str, behind: str) -> list[Any]:
        return [None if text is None else of(before + text + behind) for text in texts]

    assert given("ü-", "") == joined("ü-", "")
    assert given("", "-x") == joined("", "-x")
    assert given("a", "b", "", "c", "d") == joined("ab", "cd")
    assert given("") == joined("", "")
    assert given("a", "", "null") == [None] * 4


@pytest.mark.parametrize("function", ["Ceil", "Floor"])
def test_nan_has_the_whole_number_0_and_what_fits_no_long_is_saturated_or_an_error(function: str) -> None:
    number = Column(0, "d", pa.float64())

    def of(numbers: list[float | None], *, ansi: bool) -> list[object]:
        batch = pa.RecordBatch.from_arrays([pa.array(numbers, pa.float64())], names=["d"])
        return values(call(function, number, type=LONG, ansi=ansi), batch)

    assert of([float("nan"), None, -(2.0**63)], ansi=True) == [0, None, -(2**63)]
    assert of([float("nan"), 2.0**63, float("-inf")], ansi=False) == [0, 2**63 - 1, -(2**63)]
    for outside in (2.0**63, float("inf"), -(2.0**63) * 1.1):
        with pytest.raises(UserCodeFailure, match="ARITHMETIC_OVERFLOW"):
            of([outside], ansi=True)
