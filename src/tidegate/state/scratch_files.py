"""Files for what one operator does not keep in memory: they serve this run only, and no snapshot refers to them.

Must never be there before the first file is asked for, nor stay once nobody refers to one.
"""

import secrets
from collections.abc import Iterable

from tidegate.state.sst_files import Folder
from tidegate.state.stepwise_file import Pieces, StepwiseFile

_SUFFIX = ".scratch"
_NOUN = "Rows of state that do not fit into memory"


class ScratchFiles:
    def __init__(self, folder: Folder) -> None:
        self._token = secrets.token_hex(8)
        self._slot_folder: Folder | None = folder
        self._folder: Folder | None = None
        self._next_number = 1

    def begin(self, parts: Iterable[Pieces]) -> StepwiseFile:
        """A file that is still to be written; it goes with this object."""
        number = self._next_number
        self._next_number += 1
        return StepwiseFile(f"{number}{_SUFFIX}", self._home(), parts, noun=_NOUN)

    def close(self) -> None:
        self._folder = self._slot_folder = None

    def _home(self) -> Folder:
        if self._folder is None:
            assert self._slot_folder is not None, "not closed"
            path = self._slot_folder.path / f"{self._token}-scratch"
            path.mkdir(parents=True)
            self._folder = Folder(path, inside=self._slot_folder)
        return self._folder
