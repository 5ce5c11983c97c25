"""Kernels of times and hashes without Spark: gaps, overlaps, nulls, slices, refusals; tests/spark has the rest."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.errors import UnsupportedPlan, UserCodeFailure
from tidegate.plan.expressions import Call, Cast, Column, Expression, Literal
from tidegate.plan.kernels import check_supported, compile_expression
from tidegate.plan.kernels.zones import Zone
from tidegate.plan.zones import ChangeClock, YearlyChange, ZoneRules

TIMESTAMP, NTZ, DATE, DURATION = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.duration("us")
HOUR_S, DAY_S = 3600, 86_400
SPRING_S, AUTUMN_S = 1_000 * DAY_S, 1_200 * DAY_S
# An hour ahead from one instant to the other, once; two hours before UTC otherwise.
SUMMER = ZoneRules("Test/Summer", -2 * HOUR_S, ((SPRING_S, -HOUR_S), (AUTUMN_S, -2 * HOUR_S)))
# The European rule: the last Sundays of March and October at one o'clock of UTC.
YEARLY = ZoneRules(
    "Test/Yearly",
    HOUR_S,
    ((0, 2 * HOUR_S), (1, HOUR_S)),
    (
        YearlyChange(3, -1, 6, HOUR_S, ChangeClock.UTC, HOUR_S, HOUR_S, 2 * HOUR_S),
        YearlyChange(10, -1, 6, HOUR_S, ChangeClock.UTC, HOUR_S, 2 * HOUR_S, HOUR_S),
    ),
    last_year=1970,
)


def batch(*columns: tuple[pa.DataType, list[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(values, pa.int64() if pa.types.is_temporal(type_) else type_) for type_, values in columns]
    whole = [
        array.cast(pa.int32()) if type_ == DATE else array for array, (type_, _) in zip(arrays, columns, strict=True)
    ]
    views = [array.view(type_) for array, (type_, _) in zip(whole, columns, strict=True)]
    return pa.RecordBatch.from_arrays(views, names=[str(at) for at in range(len(columns))])


def values(expression: Expression, rows: pa.RecordBatch) -> list[Any]:
    check_supported(expression)
    result = compile_expression(expression)(rows)
    assert result.type == expression.type
    plain = {DATE: pa.int32(), TIMESTAMP: pa.int64(), NTZ: pa.int64(), DURATION: pa.int64()}.get(result.type)
    return list((result if plain is None else result.view(plain)).to_pylist())


def call(function: str, *arguments: Expression, type: pa.DataType, ansi: bool = True, **settings: str) -> Call:
    rules = {"UTC": None, "summer": SUMMER, "yearly": YEARLY}[settings.pop("zone", "UTC")]
    stated = (("timeZoneId", "UTC" if rules is None else rules.name), *settings.items())
    return Call(function, arguments, type, ansi, stated, rules)


def text(value: str) -> Literal:
    return Literal(value, pa.string())


# -- zones


def test_a_local_time_in_a_gap_moves_on_by_its_length() -> None:
    zone = Zone(SUMMER)
    local = SPRING_S - 2 * HOUR_S
    assert zone.to_instant(np.array([local - 1, local, local + HOUR_S - 1, local + HOUR_S])).tolist() == [
        SPRING_S - 1, SPRING_S, SPRING_S + HOUR_S - 1, SPRING_S,
    ]  # fmt: skip


def test_a_local_time_in_an_overlap_is_the_earlier_one_unless_the_later_is_preferred() -> None:
    zone = Zone(SUMMER)
    local = np.array([AUTUMN_S - 2 * HOUR_S])
    assert zone.to_instant(local).tolist() == [AUTUMN_S - HOUR_S]
    assert zone.to_instant_near(local, np.array([-2 * HOUR_S])).tolist() == [AUTUMN_S]
    assert zone.to_instant_near(local, np.array([-HOUR_S])).tolist() == [AUTUMN_S - HOUR_S]


def test_a_day_whose_midnight_is_left_out_starts_when_the_gap_ends() -> None:
    # Midnight of day 1000 is in the middle of a gap from 23:30 to 00:30.
    zone = Zone(ZoneRules("Test/Midnight", 0, ((1_000 * DAY_S - 1800, HOUR_S),)))
    assert zone.day_start(np.array([999, 1_000, 1_001])).tolist() == [
        999 * DAY_S, 1_000 * DAY_S - 1800, 1_001 * DAY_S - HOUR_S,
    ]  # fmt: skip


@given(st.datetimes(datetime.datetime(1972, 1, 1), datetime.datetime(9999, 1, 1)))
def test_yearly_changes_go_on_for_ever(time: datetime.datetime) -> None:
    def last_sunday(month: int) -> datetime.datetime:
        last = datetime.datetime(time.year, month, 31, 1)
        return last - datetime.timedelta(days=(last.weekday() + 1) % 7)

    seconds = (time - datetime.datetime(1970, 1, 1)) // datetime.timedelta(seconds=1)
    expected = 2 * HOUR_S if last_sunday(3) <= time < last_sunday(10) else HOUR_S
    assert Zone(YEARLY).offset_at(np.array([seconds])).tolist() == [expected]


def test_a_cast_without_the_rules_of_its_zone_is_refused() -> None:
    with pytest.raises(UnsupportedPlan, match="rules of the time zone Europe/Berlin are not known"):
        check_supported(Cast(Column(0, "ts", TIMESTAMP), DATE, True, "Europe/Berlin"))


def test_a_cast_is_in_its_zone() -> None:
    rows = batch((TIMESTAMP, [0, None, -1]))
    times = Column(0, "ts", TIMESTAMP)
    assert values(Cast(times, DATE, True, "Test/Summer", SUMMER), rows) == [-1, None, -1]
    assert values(Cast(times, NTZ, True, "Test/Summer", SUMMER), rows) == [-7_200_000_000, None, -7_200_000_001]
    assert values(Cast(Cast(times, NTZ, True, "x", SUMMER), TIMESTAMP, True, "x", SUMMER), rows) == [0, None, -1]


# -- dates and timestamps


@given(st.lists(st.none() | st.dates(), min_size=1, max_size=8))
def test_fields_of_dates_are_the_calendars(days: list[datetime.date | None]) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(days, DATE)], names=["0"])
    date = Column(0, "dt", DATE)
    expected = {
        "Year": [day and day.year for day in days],
        "Month": [day and day.month for day in days],
        "DayOfMonth": [day and day.day for day in days],
        "DayOfYear": [day and day.timetuple().tm_yday for day in days],
        "WeekDay": [None if day is None else day.weekday() for day in days],
        "WeekOfYear": [day and day.isocalendar().week for day in days],
        "YearOfWeek": [day and day.isocalendar().year for day in days],
        "DayOfWeek": [day and day.isoweekday() % 7 + 1 for day in days],
    }
    assert {name: values(call(name, date, type=pa.int32()), rows) for name in expected} == expected


def test_a_month_later_is_at_most_its_last_day() -> None:
    rows = batch((DATE, [30, 30, None]), (pa.int32(), [1, -11, 1]))  # 1970-01-31
    moved = call("AddMonths", Column(0, "dt", DATE), Column(1, "i", pa.int32()), type=DATE)
    assert values(moved, rows) == [58, -307, None]


def test_a_date_that_does_not_exist_raises_in_ansi_and_is_null_without() -> None:
    rows = batch((pa.int32(), [2023, 2024, None]), (pa.int32(), [29, 29, 99]))
    parts = (Column(0, "y", pa.int32()), Literal(2, pa.int32()), Column(1, "d", pa.int32()))
    assert values(call("MakeDate", *parts, type=DATE, ansi=False), rows) == [None, 19_782, None]
    with pytest.raises(UserCodeFailure, match=r"\[DATETIME_FIELD_OUT_OF_BOUNDS\]"):
        values(call("MakeDate", *parts, type=DATE), rows)
    with pytest.raises(UserCodeFailure, match=r"\[ARITHMETIC_OVERFLOW\]"):
        values(call("MakeDate", *parts, type=DATE, ansi=False), batch((pa.int32(), [9_000_000]), (pa.int32(), [1])))


def test_what_a_null_hides_does_not_raise() -> None:
    rows = batch((pa.int64(), [2**62, 5]))
    hidden = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x02"), rows.column(0).buffers()[1]])], names=["0"]
    )
    seconds = call("SecondsToTimestamp", Column(0, "l", pa.int64()), type=TIMESTAMP)
    assert values(seconds, hidden) == [None, 5_000_000]
    with pytest.raises(UserCodeFailure, match=r"\[DATETIME_OVERFLOW\]"):
        values(seconds, rows)


def test_an_hour_is_truncated_within_its_own_offset() -> None:
    rows = batch((TIMESTAMP, [(AUTUMN_S - 1) * 10**6, (AUTUMN_S + 1800) * 10**6]))
    hours = call("TruncTimestamp", text("hour"), Column(0, "ts", TIMESTAMP), type=TIMESTAMP, zone="summer")
    assert values(hours, rows) == [(AUTUMN_S - HOUR_S) * 10**6, AUTUMN_S * 10**6]


def test_a_day_may_have_more_hours_than_24() -> None:
    rows = batch((TIMESTAMP, [(AUTUMN_S - HOUR_S) * 10**6 - 1]))

    def later(interval_s: int) -> list[Any]:
        length = Literal(interval_s * 10**6, DURATION)
        return values(
            call("TimestampAddInterval", Column(0, "ts", TIMESTAMP), length, type=TIMESTAMP, zone="summer"), rows
        )

    start = rows.column(0).view(pa.int64())[0].as_py()
    assert later(DAY_S) == [start + (DAY_S + HOUR_S) * 10**6]
    assert later(DAY_S - 1) == [start + (DAY_S - 1) * 10**6]


def test_a_timestamp_without_zone_knows_no_summer_time() -> None:
    rows = batch((NTZ, [SPRING_S * 10**6]))
    length = Literal(DAY_S * 10**6, DURATION)
    assert values(call("TimestampAddInterval", Column(0, "n", NTZ), length, type=NTZ, zone="summer"), rows) == [
        (SPRING_S + DAY_S) * 10**6
    ]
    assert values(call("Hour", Column(0, "n", NTZ), type=pa.int32(), zone="summer"), rows) == [0]


def test_slices_and_empty_batches_are_read_from_their_offset() -> None:
    rows = batch((TIMESTAMP, [0, 3_600_000_000, None, -1]))
    hour = call("Hour", Column(0, "ts", TIMESTAMP), type=pa.int32())
    assert values(hour, rows.slice(1)) == [1, None, 23]
    assert values(hour, rows.slice(0, 0)) == []


def test_half_a_microsecond_is_rounded_away_from_zero() -> None:
    rows = batch((DURATION, [7, -7, 5, -(2**63)]), (pa.int64(), [2, 2, -2, 2**63 - 1]))
    part = call("DivideDTInterval", Column(0, "a", DURATION), Column(1, "b", pa.int64()), type=DURATION)
    assert values(part, rows) == [4, -4, -3, -1]
    with pytest.raises(UserCodeFailure, match=r"\[INTERVAL_DIVIDED_BY_ZERO\]"):
        values(part, batch((DURATION, [1]), (pa.int64(), [0])))


# -- text


def test_years_of_more_than_four_digits_have_a_sign() -> None:
    rows = batch((NTZ, [-62_198_755_200_000_000, 253_402_300_800_000_000]))
    years = call("DateFormatClass", Column(0, "n", NTZ), text("yyyy|y"), type=pa.string())
    assert values(years, rows) == ["-0001|-1", "+10000|10000"]


@pytest.mark.parametrize("pattern", ["G", "yy", "VV", "a", "EEEE", "yyyy[MM]", "'open", "SSSSSSSSS", "ww"])
def test_letters_that_depend_on_language_or_zone_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPlan, match="DateFormatClass with the pattern"):
        check_supported(call("DateFormatClass", Column(0, "n", NTZ), text(pattern), type=pa.string()))


@pytest.mark.parametrize("pattern", ["yyyyMMdd", "MM-dd", "yyyy-yyyy", "yyyy-MM-dd HH:mm:ss.SSS", "yyyy MMM"])
def test_text_without_separators_or_with_fractions_is_not_parsed(pattern: str) -> None:
    with pytest.raises(UnsupportedPlan, match="GetTimestamp with the pattern"):
        check_supported(call("GetTimestamp", Column(0, "s", pa.string()), text(pattern), type=NTZ))


def test_text_that_is_no_date_is_null_or_raises() -> None:
    rows = batch((pa.string(), ["2024-02-29", "2023-02-29", "2024-2-1", None, "-0000-01-01", "+2024-01-01"]))
    parsed = ("GetTimestamp", Column(0, "s", pa.string()), text("yyyy-MM-dd"))
    assert values(call(*parsed, type=NTZ, ansi=False), rows) == [19_782 * DAY_S * 10**6, None, None, None, None, None]
    with pytest.raises(UserCodeFailure, match=r"\[CANNOT_PARSE_TIMESTAMP\]"):
        values(call(*parsed, type=NTZ), rows)


# -- hashes

# Of one, two and three blocks of xxHash64, with every kind of rest.
LONG = [bytes(range(length)) for length in (31, 32, 39, 47, 67, 71, 96, 100)]


@given(st.lists(st.none() | st.binary(max_size=9) | st.sampled_from(LONG), min_size=1, max_size=12))
@pytest.mark.parametrize(("function", "type_"), [("Murmur3Hash", pa.int32()), ("XxHash64", pa.int64())])
def test_rows_are_hashed_independently_of_each_other(
    function: str, type_: pa.DataType, content: list[bytes | None]
) -> None:
    rows = batch((pa.binary(), content))
    hashed = call(function, Column(0, "x", pa.binary()), type=type_, seed="42")
    assert values(hashed, rows) == [values(hashed, rows.slice(row, 1))[0] for row in range(len(content))]


def test_a_null_leaves_the_hash_as_it_is() -> None:
    rows = batch((pa.int32(), [1, None]), (pa.int32(), [None, None]))
    numbers = (Column(0, "a", pa.int32()), Column(1, "b", pa.int32()))
    assert values(call("Murmur3Hash", *numbers, type=pa.int32(), seed="42"), rows) == [-559_580_957, 42]


def test_nested_columns_and_wide_decimals_are_not_hashed() -> None:
    for type_ in (pa.list_(pa.int64()), pa.decimal128(19, 0)):
        with pytest.raises(UnsupportedPlan, match="XxHash64"):
            check_supported(call("XxHash64", Column(0, "x", type_), type=pa.int64(), seed="42"))
