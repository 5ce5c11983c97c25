"""What went wrong once is not taken for done later: files that could not be closed, starts that were asked twice."""

from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.beside_loop import BesideLoop
from tidegate.connectors.contract import EndOfSource, NothingNow, Rows
from tidegate.connectors.csv_rows import CsvColumns
from tidegate.connectors.csv_tokens import Marks
from tidegate.connectors.file_sink import _HiddenFile
from tidegate.connectors.limited import LimitedReader
from tidegate.connectors.sink_encodings import ParquetEncoding
from tidegate.connectors.staged_sink import _OpenFile
from tidegate.testing.manual_clock import ManualClock

NUMBERS = pa.schema([("v", pa.int64())])


class ClosesOnce:
    """As Arrow's files: closed afterwards, whatever became of what was still to be written."""

    def __init__(self) -> None:
        self.failures = ["No space left on device"]

    def close(self) -> None:
        if self.failures:
            raise OSError(self.failures.pop())


def test_a_file_whose_end_could_not_be_written_never_counts_as_durable(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"half")
    file: Any = ClosesOnce()
    hidden = _HiddenFile(tmp_path / "part", "", NUMBERS, ParquetEncoding("none"), _file=file)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            hidden.finish()
    assert not hidden.is_durable


def test_a_staged_file_whose_end_could_not_be_written_never_counts_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = _OpenFile(tmp_path / "part", NUMBERS, BesideLoop("a sink's thread"))
    staged.write(pa.RecordBatch.from_pydict({"v": [1, 2]}, schema=NUMBERS))
    closing = ClosesOnce()
    monkeypatch.setattr(staged, "_parquet", closing)
    monkeypatch.setattr(staged, "_encode", lambda gathered: None)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            staged.finish()


def csv(names: list[str]) -> CsvColumns:
    schema = pa.schema([(name, pa.string()) for name in names])
    return CsvColumns(names, schema, Marks(",", '"', "\\"), "", "UTC", True)


@pytest.mark.parametrize(
    ("names", "lines"),
    [(["a"], ["x\ry", "z"]), (["a", "b"], ["x,1", "\ny,2"]), (["a", "b"], ['"x\r",1', "y,2"])],
)
def test_a_line_with_an_end_of_line_in_it_is_one_row(names: list[str], lines: list[str]) -> None:
    parsed = csv(names).parse(pa.array(lines))
    assert [len(column) for column in parsed.columns] == [len(lines)] * len(names)


class Answers:
    def __init__(self, *answers: Any) -> None:
        self._answers = deque(answers)

    def poll(self, max_rows: int) -> Any:
        return self._answers.popleft()


def test_a_source_that_waits_for_its_turn_is_not_one_without_rows() -> None:
    clock = ManualClock()
    reader: Any = Answers(Rows(pa.RecordBatch.from_pydict({"v": [1]})), NothingNow(5.0), EndOfSource())
    limited = LimitedReader(reader, rows_per_s=0.5, clock=clock)
    waiting = limited.poll(10)
    assert isinstance(waiting, NothingNow) and waiting.is_behind, "nobody has looked yet"
    clock.advance(2000.0)
    assert isinstance(limited.poll(10), Rows)
    waiting = limited.poll(10)
    assert isinstance(waiting, NothingNow) and waiting.is_behind
    clock.advance(2000.0)
    assert limited.poll(10) == NothingNow(5.0)
