"""What slots and the coordinator say to one another on control connections. One tagged union per direction.

Coordinator messages carry the generation; a message of another one is ignored by whoever gets it.
Slot-to-slot messages need none: a connection between slots belongs to one generation.
"""

from typing import TypeAlias

import msgspec

from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.network.address import SlotAddress
from tidegate.protocol.recovery import CapturedRows
from tidegate.protocol.switching import UNKNOWN_SPEED, StorageSpeed
from tidegate.storage.manifests import SharedFile


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Plain values without cycles: with thousands of tasks the collector would only look at them for nothing."""


# -- slot to slot


class BarrierSent(_Message, frozen=True, gc=False):
    """The barrier stands before `before` on this channel; the checkpoint is `age_ms` old."""

    channel: int
    checkpoint: CheckpointId
    before: Sequence
    age_ms: float
    switch_after_ms: float | None


class CutSent(_Message, frozen=True, gc=False):
    channel: int
    checkpoint: CheckpointId
    held_from: Sequence
    before: Sequence


class Granted(_Message, frozen=True, gc=False):
    """The receiver has processed everything below `consumed`, and lets so many bytes be in flight."""

    channel: int
    consumed: Sequence
    window_bytes: int


class ChannelFinished(_Message, frozen=True, gc=False):
    """The sending task has finished: its end of input stands for every barrier to come."""

    channel: int


PeerMessage: TypeAlias = BarrierSent | CutSent | Granted | ChannelFinished


# -- coordinator to slot


class Deploy(_Message, frozen=True, gc=False):
    """Build this generation: connect to the peers, restore, then say `Ready`.

    `restore_location`: where the manifest and its files lie, if not in the job's own checkpoint location.
    """

    generation: Generation
    peers: dict[SlotIndex, SlotAddress]
    restore_manifest: str | None
    restore_location: str | None = None
    captured_rows: CapturedRows = CapturedRows.DELIVER


class Run(_Message, frozen=True, gc=False):
    """`next_checkpoint`: the id of the first one that will be triggered."""

    generation: Generation
    next_checkpoint: CheckpointId


class AssignSplits(_Message, frozen=True, gc=False):
    generation: Generation
    vertex: VertexId
    splits: list[bytes]
    is_last: bool


class TriggerCheckpoint(_Message, frozen=True, gc=False):
    """`switch_after_ms` as the barriers carry it. A savepoint names its location.

    `suspends`: sources stop behind the barrier.
    """

    generation: Generation
    checkpoint: CheckpointId
    switch_after_ms: float | None
    savepoint: str | None = None
    suspends: bool = False


class BarrierEverywhere(_Message, frozen=True, gc=False):
    """The barrier has reached every task of the job: sources that stopped for it may go on."""

    generation: Generation
    checkpoint: CheckpointId


class AbortCheckpoint(_Message, frozen=True, gc=False):
    generation: Generation
    checkpoint: CheckpointId


class StoredElement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a captured element lies: in a shared file, from row `first_row` of it on."""

    sequence: Sequence
    first_row: int
    file: int
    offset: int
    length: int


class StoredChannel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The elements that one side stored of a channel; `file` numbers the shared files beside it."""

    channel: ChannelId
    elements: list[StoredElement]


class CheckpointDone(_Message, frozen=True, gc=False):
    """Its entry is in the job log: what the slot keeps in case it fails may go.

    `files` and `held`: where senders in other slots stored what now waits in this one.
    """

    generation: Generation
    checkpoint: CheckpointId
    files: list[SharedFile] = []
    held: list[StoredChannel] = []


class Leave(_Message, frozen=True, gc=False):
    """Close everything and return the slot to Spark. `comes_back`: another launch of the job follows."""

    reason: str
    comes_back: bool = False


ToSlot: TypeAlias = (
    Deploy | Run | AssignSplits | TriggerCheckpoint | BarrierEverywhere | AbortCheckpoint | CheckpointDone | Leave
)


# -- slot to coordinator


class DroppedOnEdge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Captured rows of one edge that were not restored. `unread_bytes`: stored ones that could not be read, and so not
    be counted as rows.
    """

    edge: EdgeId
    rows: int
    bytes: int
    unread_bytes: int = 0


class Ready(_Message, frozen=True, gc=False):
    """Connected and restored; `recovered_bytes` of captured data wait to be processed first.

    `local_bytes` and `remote_bytes` were read from copies on the slot's machine and from the store; `damaged_copies`
    were found there and replaced.
    """

    generation: Generation
    recovered_bytes: int
    dropped: list[DroppedOnEdge] = []
    local_bytes: int = 0
    remote_bytes: int = 0
    damaged_copies: int = 0


class ChannelCapture(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One side of a channel that holds captured data; `first`, `row` and `phases` are the receiver's alone."""

    channel: ChannelId
    held_from: Sequence
    before: Sequence
    first: Sequence | None = None
    row: int = 0
    phases: tuple[Sequence, ...] = ()


class TaskPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One task's part of a checkpoint, in numbers; `position` of a source whose enumerator follows its readers."""

    task: TaskId
    kind: str
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    state_bytes: int
    inflight_bytes: int
    new_inflight_bytes: int
    committables: list[bytes]
    position: bytes | None = None


class BarrierSeen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    channel: ChannelId
    at_ms: float


class TaskStanding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one task is with one checkpoint. Times are of the slot's clock, and mean something beside its `now_ms`.

    `first` and `last`: of its barriers, those that came first and last so far; of `missing`, some. What it did, from
    the first barrier to the snapshot: `processed_bytes`, `busy_ms`, `backpressured_ms`, and of that `unstored_ms`, for
    changes of state to be stored. `queued_bytes` were in front of it at the first barrier, `left_bytes` are now.
    `epoch_*`: what it took in since the snapshot before this one.
    """

    task: TaskId
    first: BarrierSeen | None = None
    last: BarrierSeen | None = None
    missing: list[ChannelId] = []
    kind: str | None = None
    snapshot_at_ms: float | None = None
    sync_ms: float = 0.0
    state_bytes: int = 0
    queued_bytes: int = 0
    left_bytes: int = 0
    processed_bytes: int = 0
    drain_bytes_per_ms: float | None = None
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0
    epoch_rows: int = 0
    epoch_bytes: int = 0
    paused_ms: float = 0.0
    unstored_ms: float = 0.0


class LongStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that took far longer than a slice should: one call of a function, most likely."""

    task: TaskId
    ended_at_ms: float
    duration_ms: float
    rows: int


class SlotStanding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a slot is with one checkpoint. A time that is None has not come.

    The order: triggered, encoding, queued (for the thread that writes), uploading. Of the writing, `sink_ms` went into
    the sinks' own files and `storing_ms` into `stored_bytes` of snapshot. `storage`: what this upload or, if it needed
    no file, the last one before told of the store. `encoded_for_ms`: what encoding took of the slot's loop.
    """

    checkpoint: CheckpointId
    triggered_at_ms: float | None = None
    encoding_at_ms: float | None = None
    queued_at_ms: float | None = None
    uploading_at_ms: float | None = None
    sink_ms: float = 0.0
    storing_ms: float = 0.0
    stored_bytes: int = 0
    tasks: list[TaskStanding] = []
    long_steps: list[LongStep] = []
    storage: StorageSpeed = UNKNOWN_SPEED
    encoded_for_ms: float = 0.0


class Acknowledge(_Message, frozen=True, gc=False):
    """`now_ms`: the slot's clock when it said this. `content`: the state file, if it is not in the store."""

    generation: Generation
    checkpoint: CheckpointId
    path: str
    length: int
    crc32: int
    parts: list[TaskPart]
    received: list[ChannelCapture]
    held: list[ChannelCapture]
    shared: list[SharedFile] = []
    held_elements: list[StoredChannel] = []
    standing: SlotStanding | None = None
    now_ms: float = 0.0
    content: bytes | None = None


class SnapshotsTaken(_Message, frozen=True, gc=False):
    """Every task of this slot has taken its snapshot; what is left is to store it."""

    generation: Generation
    checkpoint: CheckpointId


class Decline(_Message, frozen=True, gc=False):
    """`is_upload`: it was taken, and the store did not take it."""

    generation: Generation
    checkpoint: CheckpointId
    reason: str
    is_upload: bool = False


class TaskProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    task: TaskId
    rows_in: int
    rows_out: int
    queued_bytes: int
    busy_ms: float
    backpressured_ms: float
    paused_ms: float = 0.0
    watermark_ms: int | None = None
    late_rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    window_bytes: int = 0
    lag_ms: float | None = None
    unstored_bytes: int = 0


class Progress(_Message, frozen=True, gc=False):
    """Sent a few times a second. `is_idle`: no rows wait here and the sources have read what they were given.

    `standings`: of the checkpoints that are under way. `now_ms`: the slot's clock when it said this.
    """

    generation: Generation
    is_idle: bool
    splits_received: int
    tasks: list[TaskProgress]
    standings: list[SlotStanding] = []
    now_ms: float = 0.0


class InputEnded(_Message, frozen=True, gc=False):
    """Every task of this slot has processed its last row."""

    generation: Generation


class Failed(_Message, frozen=True, gc=False):
    """`is_final`: starting again cannot help, the user has to change something.

    `is_damage`: something stored cannot be used, which the message names.
    """

    generation: Generation
    is_user_code: bool
    is_final: bool
    message: str
    traceback: str
    is_damage: bool = False


FromSlot: TypeAlias = Ready | SnapshotsTaken | Acknowledge | Decline | Progress | InputEnded | Failed


class SlotIntroduction(msgspec.Struct, frozen=True):
    """Said in the handshake with the coordinator. `memory_bytes`: of the slot's machine or container."""

    job: str
    launch: int
    slot: SlotIndex
    pid: int
    address: SlotAddress
    versions: dict[str, str]
    memory_bytes: int | None = None


def encode(message: PeerMessage | ToSlot | FromSlot) -> bytes:
    return _encoder.encode(message)


def decode_peer(data: bytes) -> PeerMessage:
    return _peer_decoder.decode(data)


def decode_to_slot(data: bytes) -> ToSlot:
    return _to_slot_decoder.decode(data)


def decode_from_slot(data: bytes) -> FromSlot:
    return _from_slot_decoder.decode(data)


_encoder = msgspec.msgpack.Encoder()
_peer_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_to_slot_decoder: msgspec.msgpack.Decoder[ToSlot] = msgspec.msgpack.Decoder(ToSlot)
_from_slot_decoder: msgspec.msgpack.Decoder[FromSlot] = msgspec.msgpack.Decoder(FromSlot)
