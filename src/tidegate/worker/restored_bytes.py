"""How much restoring a checkpoint reads: known from the manifest and the indexes of its files, nothing else is read."""

from tidegate.model.ids import SlotIndex
from tidegate.plan.lower import fingerprint
from tidegate.plan.matching import match_stored
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import CapturedRows
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest, SharedFile
from tidegate.storage.store import ReadableStore
from tidegate.worker.restoring import StoredFiles, TakenOver, taken_over


def bytes_to_read(
    store: ReadableStore, manifest: Manifest, plan: JobPlan, captured_rows: CapturedRows = CapturedRows.DELIVER
) -> list[int]:
    """By each slot of the plan at most, beside the manifest."""
    stored, names = manifest.plan_fingerprint, manifest.operator_names
    match = match_stored(plan, fingerprint(plan), stored=stored, stored_names=names)
    assert match is not None, "whether it fits was looked at before"
    files = StoredFiles(store, manifest)
    slots = [SlotIndex(slot) for slot in range(plan.parallelism)]
    return [_bytes_of(files, taken_over(files, plan, match, slot, captured_rows)) for slot in slots]


def _bytes_of(files: StoredFiles, taken: TakenOver) -> int:
    """Each section once, and each file beside them: what lies in which of a slot's files is not looked up.

    Rows in flight are read with the whole file that their slot captured them in, whoever gets them.
    """
    captured = [section for stored, edge in taken.captured for section in files.captured_sections(stored, edge)]
    of_slot = {file.slot: file for file in files.manifest.slots}
    read_bytes = 0
    beside: dict[str, int] = {}
    lengths = {section.key: section.length_bytes for section in [*taken.sections, *captured]}
    for key, length_bytes in lengths.items():
        file = of_slot[SlotIndex(key.task.subtask)]
        if file.content is None:
            read_bytes += length_bytes
        if key.kind in ("files", "channel"):
            beside |= {each.path: each.length for each in file.shared if _is_captured(each) == (key.kind == "channel")}
    opened = {SlotIndex(key.task.subtask) for key in lengths}
    indexes = sum(files.index_bytes(slot) for slot in opened if of_slot[slot].content is None)
    return indexes + read_bytes + sum(beside.values())


def _is_captured(file: SharedFile) -> bool:
    return layout.parse_channel_file(file.path) is not None
