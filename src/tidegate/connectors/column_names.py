"""Which column of a file a wanted one means: by its name in any case, or as it is written."""

from enum import Enum


class ColumnNames(Enum):
    """By `spark.sql.caseSensitive`."""

    IN_ANY_CASE = "in any case"
    AS_WRITTEN = "as written"

    def key(self, name: str) -> str:
        """Equal for names that mean the same column."""
        return name.lower() if self is ColumnNames.IN_ANY_CASE else name
