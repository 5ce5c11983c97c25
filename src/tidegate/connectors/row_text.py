"""How timestamps are spelled in text files: as Spark's writers do, with microseconds where there are any."""

import pyarrow as pa
import pyarrow.compute as pc


def timestamp_text(column: pa.Array) -> pa.Array:
    """`2024-01-02T03:04:05.123Z`, and without the zone for a time without one."""
    zone = "" if column.type.tz is None else "Z"
    local = column.cast(pa.timestamp("us"))
    micros = pc.strftime(local, format="%Y-%m-%dT%H:%M:%S")
    # Spark writes milliseconds and cuts off the rest; only where that would lose something there are more digits.
    millis = pc.replace_substring_regex(micros, r"000$", "")
    return pc.binary_join_element_wise(millis, zone, "")
