"""Which files a path means: a folder, one file or a pattern.

With Spark's rules for hidden names and for folders named `key=value`. Lists; never opens, changes or removes a file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import msgspec

from tidegate.connectors.column_names import ColumnNames
from tidegate.connectors.hadoop_glob import check_pattern, glob_regex, has_marks, matched_part, matching_paths
from tidegate.model.errors import OptionError

_SPARK_METADATA = "_spark_metadata"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class FileSplit(msgspec.Struct, frozen=True):
    path: str
    modified_ns: int
    size_bytes: int

    @property
    def modified_ms(self) -> int:
        return self.modified_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """`is_recursive`: every file below the path, whatever its folders are called, and no columns from their names."""

    path: Path
    name_filter: str | None
    is_recursive: bool
    owner: str
    names: ColumnNames

    def check(self) -> None:
        """Raises `OptionError` for a pattern that cannot be understood."""
        if is_glob(self.path):
            check_pattern(str(self.path))
        if self.name_filter is not None:
            glob_regex(self.name_filter)

    def files(self) -> list[FileSplit]:
        """Every visible file, oldest first, then by path."""
        fits = glob_regex("*" if self.name_filter is None else self.name_filter).fullmatch
        paths = {path for root in self._roots() for path in self._below(root) if fits(path.name)}
        found = map(_stat, paths)
        return in_reading_order(split for split in found if split is not None)

    def partition_of(self, path: str) -> Mapping[str, str | None]:
        """The columns that the file's folders name, by `names`; None for no value."""
        if self.is_recursive:
            return {}
        # By the names alone: to look for the folders again would cost as much as listing them, for every file.
        root = matched_part(str(self.path), Path(path)) if is_glob(self.path) else self.path
        return {} if root is None or not Path(path).is_relative_to(root) else self._partition(root, Path(path))

    def _roots(self) -> list[Path]:
        if not is_glob(self.path):
            return [self.path]
        return [path for path in matching_paths(str(self.path)) if _SPARK_METADATA not in path.parts]

    def _below(self, root: Path) -> Iterator[Path]:
        if root.is_file():
            # Spark asks for the name also where the path itself is the file, but not of a folder that fits a pattern.
            if not _is_hidden(root.name):
                yield root
            return
        if (root / _SPARK_METADATA).exists():
            raise OptionError(
                f"{root} was written by Structured Streaming (it has _spark_metadata), which the {self.owner} does "
                f"not follow yet: copy the committed files to another folder, or name that query's source."
            )
        files = list(self._walk(root))
        columns = {tuple(self._partition(root, path)) for path in files}
        if self.is_recursive or columns <= {()}:
            files = files if self.is_recursive else [path for path in files if path.parent == root]
        elif len(columns) > 1:
            shown = " and ".join("/".join(names) or "no partition" for names in sorted(columns))
            raise OptionError(
                f"The files below {root} of the {self.owner} are partitioned in different ways ({shown}): "
                f"give each its own path."
            )
        yield from files

    def _walk(self, folder: Path) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            if folder in self._roots():
                raise OptionError(
                    f"The folder {folder} of the {self.owner} is gone: put it back or correct the path."
                ) from None
            return  # a folder below it went since it was listed
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield from self._walk(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)

    def _partition(self, root: Path, path: Path) -> dict[str, str | None]:
        values: dict[str, str | None] = {}
        for name in path.parent.relative_to(root).parts if path != root else ():
            key, equals, value = name.partition("=")
            if not equals or not key:
                return {}
            values[self.names.key(unquote(key))] = None if value == _NO_VALUE else unquote(value)
        return values


def in_reading_order(files: Iterable[FileSplit]) -> list[FileSplit]:
    return sorted(files, key=lambda file: (file.modified_ns, file.path))


def is_glob(path: Path) -> bool:
    # A path that is there as written is meant as written, whatever characters it has.
    return has_marks(str(path)) and not path.exists()


def _is_hidden(name: str) -> bool:
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _stat(path: Path) -> FileSplit | None:
    try:
        found = path.stat()
    except FileNotFoundError:  # Removed since it was listed: then there is nothing to read.
        return None
    return FileSplit(str(path), found.st_mtime_ns, found.st_size)
