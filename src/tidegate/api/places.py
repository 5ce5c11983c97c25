"""The folders of a query before it starts: which are not there yet, and which must not be the same.

Must not make any: what a refused start leaves behind is what `remove_empty` could not find.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from tidegate.model.errors import OptionError
from tidegate.plan.nodes import Sink
from tidegate.plan.physical import JobPlan
from tidegate.spark.hadoop_conf import store_access
from tidegate.storage import layout
from tidegate.storage.access import StoreAccess
from tidegate.storage.reachable import check_readable, check_writable
from tidegate.storage.store import local_path


def missing_folders(places: Iterable[str]) -> list[Path]:
    """The local ones of `places`, and their parents, that do not exist; inner ones first."""
    missing: set[Path] = set()
    for place in places:
        path = local_path(place)
        while path is not None and not path.exists():
            missing.add(path)
            path = path.parent
    return sorted(missing, key=lambda folder: len(folder.parts), reverse=True)


def remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not made, or in use by somebody else: both are fine
            folder.rmdir()


def reachable(spark: SparkSession, location: str, restore_from: str | None) -> StoreAccess:
    """What the session says about reaching these places. Raises `OptionError` if they cannot be reached with it."""
    access = store_access(spark, [location] if restore_from is None else [location, restore_from])
    check_writable(location, access)
    if restore_from is not None:
        check_readable(restore_from, access)
    return access


def path_option(options: Iterable[tuple[str, str]]) -> str | None:
    return next((value for name, value in options if name.lower() == "path"), None)


def checkpoint_path(given: str) -> str:
    """The path of a checkpoint or savepoint so that it means the same in every process."""
    path = local_path(given)
    if path is None:
        return given
    if (path / layout.LOG).is_dir():
        raise OptionError(
            f"Option 'restore.from' is {given!r}, which is a checkpointLocation: name one checkpoint in its folder "
            f"{layout.CHECKPOINTS!r}, or a savepoint."
        )
    return str(path)


def refuse_own_output(plan: JobPlan, sink: Sink) -> None:
    """A query that finds its results among its input never ends."""
    written = _resolved(path_option(sink.options.items()))
    for vertex in plan.vertices:
        if vertex.source is None or written is None:
            continue
        if _resolved(path_option(vertex.source.options.items())) == written:
            raise OptionError(
                f"The query reads the folder {written} and writes to it, so it would read its own output: "
                f"choose another path for the sink."
            )


def _resolved(place: str | None) -> Path | None:
    path = None if place is None else local_path(place)
    return None if path is None else path.resolve()
