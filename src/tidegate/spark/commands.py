"""A pickled Python function with all it needs to run in a slot as it would in Spark's own worker.

Owns the form in which functions travel with the plan: PySpark's command, its broadcast variables by value, and the
settings Spark hands its workers. Must never be read from storage: it is made anew from the query at each start.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from pyspark.serializers import CPickleSerializer

from tidegate.model.errors import EnvironmentProblem, UnsupportedPlan

# Broadcast values travel inside the plan, to every slot: enough for lookup tables, not for data.
MAX_BROADCAST_BYTES = 64 << 20

_ENCRYPTION = "spark.io.encryption.enabled"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """`settings`: Spark's own for Python workers. `details`: what else the function's kind needs, by name."""

    eval_type: int
    pickled: bytes
    name: str
    broadcasts: dict[int, bytes]
    settings: dict[str, str]
    details: dict[str, str] = {}

    @property
    def time_zone(self) -> str:
        return self.settings.get("spark.sql.session.timeZone", "UTC")


_encode = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(Command)


def command_of(
    python_function: Any, *, spark: Any, eval_type: int, name: str, node: str, details: Mapping[str, str] | None = None
) -> Command:
    """From the JVM's `PythonFunction`; `node` is Spark's name for what calls it."""
    return Command(
        eval_type=eval_type,
        pickled=bytes(python_function.command().unsafeArray()),
        name=name,
        broadcasts=_broadcasts(python_function, spark, node=node),
        settings=_worker_settings(spark),
        details=dict(details or {}),
    )


def encode_command(command: Command) -> bytes:
    return _encode(command)


def decode_command(data: bytes) -> Command:
    return _DECODER.decode(data)


def open_function(command: Command) -> Any:
    """The function, with its broadcast variables in place."""
    from pyspark.worker_util import read_command

    register_broadcasts(command)
    try:
        function, _return_type = read_command(CPickleSerializer(), command.pickled)
    except ModuleNotFoundError as missing:
        raise missing_module(missing) from missing
    return function


def register_broadcasts(command: Command) -> None:
    """Where unpickling looks for them; those of other functions stay, for ids are unique in a Spark application."""
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry

    for id, pickled in command.broadcasts.items():
        if id not in _broadcastRegistry:
            broadcast: Any = Broadcast.__new__(Broadcast)
            broadcast._value = broadcast.load(io.BytesIO(pickled))
            broadcast._path = None
            _broadcastRegistry[id] = broadcast


def missing_module(missing: ModuleNotFoundError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"A function of the query needs the module {missing.name!r}, which the workers cannot import: "
        f"ship it with spark.sparkContext.addPyFile(...) or install it on the executors."
    )


def _broadcasts(python_function: Any, spark: Any, *, node: str) -> dict[int, bytes]:
    variables = list(python_function.broadcastVars())
    if not variables:
        return {}
    if spark.sparkContext.getConf().get(_ENCRYPTION, "false").lower() == "true":
        raise UnsupportedPlan(
            f"The Python function of Spark's {node} uses a broadcast variable or carries over 1 MiB of data, "
            f"and {_ENCRYPTION} is on: load that data inside the function instead."
        )
    found: dict[int, bytes] = {}
    for variable in variables:
        with open(variable.value().path(), "rb") as file:
            found[int(variable.id())] = file.read(MAX_BROADCAST_BYTES + 1)
        if sum(map(len, found.values())) > MAX_BROADCAST_BYTES:
            raise UnsupportedPlan(
                f"The Python function of Spark's {node} carries more than {MAX_BROADCAST_BYTES >> 20} MiB of "
                f"broadcast variables and other data: load that data inside the function instead."
            )
    return found


def _worker_settings(spark: Any) -> dict[str, str]:
    """As Spark itself hands them to its Python workers."""
    runner = spark._jvm.org.apache.spark.sql.execution.python.ArrowPythonRunner
    settings = runner.getPythonRunnerConfMap(spark._jsparkSession.sessionState().conf())
    pairs = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(settings)
    return {str(key): str(pairs[key]) for key in pairs}


def schema_detail(json_text: str) -> Any:
    """A schema that was put into `details` as Spark's JSON."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(json_text))
