"""`tg.named`: a name for an operator, by which its state is found when the query was changed."""

from pyspark.sql import DataFrame

from tidegate.spark.naming import named_frame


def named(df: DataFrame, name: str) -> DataFrame:
    """The same DataFrame, whose last operator with state, or whose source if it has none, bears this name.

    A checkpoint's state goes to the operator of the same name, wherever that stands in the query by then.
    """
    return named_frame(df, name)
