"""Values of Python data sources on their way between driver and slots, pickled as PySpark pickles them itself."""

from typing import Any

from pyspark.serializers import CPickleSerializer


def dumps(value: Any) -> bytes:
    pickled: bytes = CPickleSerializer().dumps(value)  # type: ignore[no-untyped-call]
    return pickled


def loads(data: bytes) -> Any:
    return CPickleSerializer().loads(data)  # type: ignore[no-untyped-call]
