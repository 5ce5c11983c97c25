"""What a checkpoint consists of, as readable JSON; and the sealed envelope that manifests and log entries come in.

Owns the version numbers and checksums of what Tidegate stores as JSON. It decides nothing about a checkpoint and
deletes nothing: a file that cannot be trusted is named and left where it is.
"""

import zlib
from typing import Literal, TypeAlias

import msgspec

from tidegate.model.errors import Damaged, DidNotHappen
from tidegate.model.ids import ChannelId, CheckpointId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.model.units import format_bytes
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.storage.decoding import from_json
from tidegate.storage.stored_plan import StoredPlan

CheckpointKind: TypeAlias = Literal["aligned", "unaligned", "switched"]

VERSION = 2
# What all slots together may have in a manifest: it is one message for each slot, and one file that is read as a whole.
MOST_CONTENT_BYTES = 5 << 20
_ENCODER = msgspec.json.Encoder()


class SharedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that several checkpoints may refer to."""

    path: str
    length: int
    crc32: int


class SlotFile(msgspec.Struct, frozen=True, gc=False):
    """A slot's state file, by its path below the checkpoint location, and the shared files that it refers to.

    `content`: the file itself, if it is small or with `checkpoint.storage` driver; there is none at the path then.
    """

    slot: SlotIndex
    path: str
    length_bytes: int
    crc32: int
    shared: list[SharedFile] = []
    content: bytes | None = None


class ChannelRange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A channel's part of the checkpoint: from `row` of element `first`, cut at `h`, up to `n` (excluded).

    The receiver captured what lies below `h`, the sender the rest. `phases`: where parts of it end that come before
    the rest on all channels of the task, because they were recovered themselves.
    """

    channel: ChannelId
    first: Sequence
    row: int
    h: Sequence
    n: Sequence
    phases: tuple[Sequence, ...] = ()


class StagedInput(msgspec.Struct, frozen=True, gc=False):
    """What Spark had ingested for a source and nobody had read, with Spark's own checkpoint: of savepoints only."""

    vertex: VertexId
    files: list[SharedFile]


class TaskCommittables(msgspec.Struct, frozen=True, gc=False):
    task: TaskId
    committables: list[bytes]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`captured_max_parallelism`: by whose key groups rows in flight were sent, if it is another one. `job`: where the
    log of a savepoint's query was, which may have moved since.
    """

    checkpoint: CheckpointId
    generation: Generation
    kind: CheckpointKind
    is_savepoint: bool
    triggered_at_ms: int
    duration_ms: float
    plan_fingerprint: list[str]
    operator_names: dict[str, str] = {}
    parallelism: int
    max_parallelism: int
    captured_max_parallelism: int | None = None
    vertex_parallelism: list[int]
    slots: list[SlotFile]
    channels: list[ChannelRange] = []
    committables: list[TaskCommittables] = []
    staged: list[StagedInput] = []
    tasks: dict[str, dict[str, float]] = {}
    statistics: CheckpointFacts | None = None
    plan: StoredPlan | None = None
    state_backend: str | None = None
    job: str | None = None

    @property
    def key_groups_in_flight(self) -> int:
        """How many there were when the rows in flight were sent."""
        return self.captured_max_parallelism or self.max_parallelism


class _Version(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct):
    version: int
    crc32: str
    content: msgspec.Raw


def check_content(length_bytes: int) -> None:
    """Raises `DidNotHappen` if a checkpoint is too large to be kept in its manifest."""
    if length_bytes > MOST_CONTENT_BYTES:
        raise DidNotHappen(
            f"The checkpoint has {format_bytes(length_bytes)}, and checkpoint.storage=driver keeps at most "
            f"{format_bytes(MOST_CONTENT_BYTES)} in the manifest: set checkpoint.storage to files."
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """A line for each entry of a list: there may be a channel for each pair of slots, and people read this."""
    fields = [b' "%s": %s' % (name.encode(), _readable(getattr(manifest, name))) for name in manifest.__struct_fields__]
    return seal(b"{\n" + b",\n".join(fields) + b"\n}")


def decode_manifest(data: bytes, *, name: str) -> Manifest:
    content = unseal(data, name=name)
    try:
        return from_json(content, Manifest)
    except msgspec.MsgspecError as error:
        raise _damaged(name, f"its content does not fit ({error})") from error


def _readable(value: object) -> bytes:
    if isinstance(value, list):
        return b"[\n  " + b",\n  ".join(_ENCODER.encode_lines(value).splitlines()) + b"\n ]" if value else b"[]"
    return msgspec.json.format(_ENCODER.encode(value), indent=1)


def seal(content: bytes) -> bytes:
    """JSON with its version and checksum around it."""
    return b'{"version": %d, "crc32": "%08x", "content": %s}\n' % (VERSION, zlib.crc32(content), content)


def unseal(data: bytes, *, name: str) -> bytes:
    """The content exactly as it was sealed; raises `Damaged` if anything else is there."""
    try:
        # The version is looked at alone first: another version may have another envelope.
        version = from_json(data, _Version).version
        if version != VERSION:
            raise _damaged(name, f"it has format version {version} and this Tidegate reads version {VERSION}")
        envelope = from_json(data, _Envelope)
    except msgspec.MsgspecError as error:
        raise _damaged(name, f"it is truncated or not JSON of the expected form ({error})") from error
    content = bytes(envelope.content)
    if envelope.crc32 != f"{zlib.crc32(content):08x}":
        raise _damaged(name, "its checksum is wrong")
    return content


def _damaged(name: str, reason: str) -> Damaged:
    return Damaged(
        f"{name} cannot be used: {reason}; restore it from a backup or start from another checkpoint "
        f"(nothing was changed or deleted)."
    )
