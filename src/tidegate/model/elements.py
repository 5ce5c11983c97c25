"""What a channel carries. Numbered elements take a sequence number each; a barrier stands before one."""

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from tidegate.model.ids import CheckpointId, Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Watermark:
    event_time_ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing comes on this channel for now: it does not hold back event time until rows or a watermark follow."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No more rows will come on this channel in this run; state and watermarks stay as they are."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Divides a channel: what has a sequence number below `before` belongs to the checkpoint."""

    checkpoint: CheckpointId
    before: Sequence


NumberedElement: TypeAlias = Batch | Watermark | Idle | EndOfInput
Element: TypeAlias = NumberedElement | Barrier
