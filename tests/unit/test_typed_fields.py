"""Values of user state whose schema has grown since they were stored."""

from pyspark.sql.types import StructType

from tidegate.spark.typed_states import Fields


def test_a_value_from_before_fields_were_added_has_null_there() -> None:
    fields = Fields(StructType.fromJson(_struct("n", "long", "last", "string", "at", "timestamp")), state="count")
    assert fields.given((7,)) == (7, None, None)
    assert fields.given((7, "x")) == (7, "x", None)
    row = fields.given_row((7,))
    assert (row.n, row.last, row.at) == (7, None, None)


def _struct(*names_and_types: str) -> dict[str, object]:
    pairs = zip(names_and_types[::2], names_and_types[1::2], strict=True)
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in pairs]
    return {"type": "struct", "fields": fields}
