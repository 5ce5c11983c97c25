"""The lines of one text file, block by block: decompressed by its suffix, cut where Spark's readers cut.

Holds at most one block and one unfinished line. A byte sequence that is not UTF-8 is refused, never replaced.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import Damaged, IncompatibleCheckpoint

# What is cut and parsed in one go: small enough not to hold up a loop, large enough to be worth the calls.
_BLOCK_BYTES = 256 << 10
# A line that does not end is a file that is no text.
_MOST_LINE_BYTES = 256 << 20
_BOM = b"\xef\xbb\xbf"
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# Hadoop frames these in its own way, which nothing here reads.
_HADOOP_ONLY = (".lz4", ".snappy", ".deflate")


class MissingFile(Damaged):
    """The file is gone; a source may be told to go on without it."""


def read_lines(path: str, *, size_bytes: int, separator: bytes | None) -> Iterator[pa.Array]:
    """Arrays of lines without their ends. `separator`: None for any of \\n, \\r\\n and \\r."""
    with open_text(path, size_bytes=size_bytes) as stream:
        rest = b""
        is_start = True
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except (OSError, EOFError, pa.ArrowException) as error:
                raise unreadable(path, error) from error
            text = rest + block
            if is_start and (len(text) >= len(_BOM) or not block):
                text, is_start = text.removeprefix(_BOM), False
            if not block:
                break
            cut = _last_cut(text, separator)
            if cut == 0 and len(text) > _MOST_LINE_BYTES:
                raise Damaged(f"The source file {path} has a line of more than {_MOST_LINE_BYTES >> 20} MiB.")
            if cut:
                yield _split(path, text[:cut], separator)
            rest = text[cut:]
        if text:
            yield _split(path, text, separator)


def read_whole(path: str, *, size_bytes: int) -> pa.Array:
    """The file as one string."""
    with open_text(path, size_bytes=size_bytes) as stream:
        try:
            content = stream.read()
        except (OSError, EOFError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
    return _checked(path, content)


def open_text(path: str, *, size_bytes: int) -> pa.NativeFile:
    suffix = Path(path).suffix
    if suffix in _HADOOP_ONLY:
        raise Damaged(
            f"The source file {path} is compressed in Hadoop's own framing of {suffix[1:]}, which Tidegate does not "
            f"read: write it as gz, bz2 or zst."
        )
    check_size(path, size_bytes)
    try:
        plain = pa.OSFile(path, "rb")
        return plain if suffix not in _CODECS else pa.CompressedInputStream(plain, _CODECS[suffix])
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error


def check_size(path: str, size_bytes: int) -> None:
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise missing(path) from None
    if found != size_bytes:
        raise changed(path)


def missing(path: str) -> MissingFile:
    return MissingFile(
        f"The source file {path} disappeared before it was read to its end: put it back, and the query goes on."
    )


def changed(path: str) -> IncompatibleCheckpoint:
    return IncompatibleCheckpoint(
        f"The source file {path} was changed after the query found it: put the former content back, "
        f"and add new rows as new files."
    )


def unreadable(path: str, error: BaseException) -> Damaged:
    return Damaged(f"The source file {path} cannot be read ({error}): replace or remove it.")


def _last_cut(text: bytes, separator: bytes | None) -> int:
    """Where the last complete line of `text` ends, behind its separator."""
    if separator is not None:
        return text.rfind(separator) + len(separator) if separator in text else 0
    # A carriage return at the very end may be half of a \r\n.
    carriage = text.rfind(b"\r", 0, len(text) - 1)
    return max(text.rfind(b"\n"), carriage) + 1


def _split(path: str, text: bytes, separator: bytes | None) -> pa.Array:
    if separator is None:
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        separator = b"\n"
    # The separator ends a line; without this the last one would be followed by an empty line.
    text = text.removesuffix(separator)
    return pc.split_pattern(_checked(path, text), separator.decode()).flatten()


def _checked(path: str, text: bytes) -> pa.Array:
    try:
        return pa.array([text], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise Damaged(f"The source file {path} is not UTF-8: convert it, other encodings are not read.") from None
