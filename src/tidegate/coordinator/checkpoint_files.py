"""The files that lie beside a manifest: which there are, and whether they are whole. Reads, never writes."""

from tidegate.model.errors import Damaged
from tidegate.protocol.recovery import CapturedRows
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest
from tidegate.storage.state_file import FileSum, check_sum
from tidegate.storage.store import Store

# Before it is chosen, a checkpoint up to this size is read as a whole; of a larger one only lengths are compared, and
# the slots find other damage when they read it.
_READ_TO_CHECK_BYTES = 256 << 20


def check_files(store: Store, manifest: Manifest, captured_rows: CapturedRows) -> None:
    """Raises `Damaged` if a file that is needed is missing, or is not the one that the manifest speaks of."""
    files = files_of(manifest)
    if captured_rows is CapturedRows.DROP:
        files = {path: file for path, file in files.items() if layout.parse_channel_file(path) is None}
    is_small = sum(file.length_bytes for file in files.values()) <= _READ_TO_CHECK_BYTES
    for path, file in files.items():
        if is_small:
            check_sum(store.read(path), file, name=path)
        elif (found_bytes := store.size(path)) != file.length_bytes:
            raise Damaged(f"{path} has {found_bytes} bytes where the manifest says {file.length_bytes}.")


def files_of(manifest: Manifest) -> dict[str, FileSum]:
    """All that lie beside it."""
    files = {slot.path: FileSum(slot.length_bytes, slot.crc32) for slot in manifest.slots if slot.content is None}
    for slot in manifest.slots:
        files.update({file.path: FileSum(file.length, file.crc32) for file in slot.shared})
    for staged in manifest.staged:
        files.update({file.path: FileSum(file.length, file.crc32) for file in staged.files})
    return files
