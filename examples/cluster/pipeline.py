"""A module of one's own: `spark-submit --py-files` takes it to the slots."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

ORDERS = "number long, user string, cents long, at timestamp"


def _euros(cents):
    return f"{cents // 100}.{cents % 100:02d} €"


euros = F.udf(_euros, StringType())


def each_order_once(orders: DataFrame) -> DataFrame:
    """Orders may come several times within a day."""
    once = orders.withWatermark("at", "1 day").dropDuplicatesWithinWatermark(["number"])
    return once.select("number", "user", euros("cents").alias("paid"))
