"""What a checkpoint holds of channels: which elements were in flight, and what either end stored of them.

Values only: reads nothing from a store.
"""

from dataclasses import dataclass

from tidegate.model.elements import Batch, NumberedElement
from tidegate.model.ids import ChannelId, Sequence
from tidegate.network.messages import StoredElement
from tidegate.protocol.rescale import InFlight
from tidegate.storage.manifests import Manifest, SharedFile


@dataclass(frozen=True, slots=True)
class CapturedPart:
    """What one end of a channel stored of it; `file` of an element numbers `files`, or says that it lies `inline`."""

    side: str
    elements: list[StoredElement]
    files: list[SharedFile]
    inline: memoryview


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """An element that was in flight, from row `first_row` of it on."""

    side: str
    sequence: Sequence
    element: NumberedElement
    first_row: int


def in_flight_of(manifest: Manifest) -> dict[ChannelId, InFlight]:
    return {
        stored.channel: InFlight(channel=stored.channel, first=stored.first, row=stored.row, before=stored.n)
        for stored in manifest.channels
    }


def without_rows(element: NumberedElement, done_rows: int) -> NumberedElement:
    if done_rows and isinstance(element, Batch):
        return Batch(element.rows.slice(done_rows))
    return element
