"""Instants under the session's time zone, as Spark labels them before Python code sees them. Changes no instant."""

import pyarrow as pa


def in_zone(batch: pa.RecordBatch, time_zone: str) -> pa.RecordBatch:
    fields = [field.with_type(zoned_type(field.type, time_zone)) for field in batch.schema]
    if all(field.type == before.type for field, before in zip(fields, batch.schema, strict=True)):
        return batch
    return batch.cast(pa.schema(fields))


def zoned_type(kind: pa.DataType, time_zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, time_zone) if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(zoned_type(field.type, time_zone)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(zoned_type(kind.value_type, time_zone)))
    if pa.types.is_map(kind):
        return pa.map_(zoned_type(kind.key_type, time_zone), zoned_type(kind.item_type, time_zone))
    return kind
