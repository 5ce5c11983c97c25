"""Stands in for what stores files of state ahead of checkpoints: images are stored when the test says so."""

from collections.abc import Callable, Sequence

from tidegate.state.contract import LocalFile


class AheadByHand:
    def __init__(self) -> None:
        self.changes: list[str] = []
        self.images: list[list[str]] = []
        self.stored: set[str] = set()
        self._then: list[Callable[[BaseException | None], None]] = []

    def is_stored(self, name: str) -> bool:
        return name in self.stored

    def store_changes(self, file: LocalFile) -> None:
        assert file.path.stat().st_size == file.length_bytes > 0
        self.changes.append(file.name)

    def store_joined(self, file: LocalFile) -> None:
        self.store_changes(file)

    def store_image(
        self, files: Callable[[], Sequence[LocalFile]], then: Callable[[BaseException | None], None]
    ) -> None:
        self.images.append([file.name for file in files()])
        self._then.append(then)

    def finish_images(self, error: BaseException | None = None) -> None:
        waiting, self._then = self._then, []
        for then in waiting:
            then(error)
