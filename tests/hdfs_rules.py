"""A local folder that renames as HDFS does below Arrow: into a folder that is there, never onto a file, except that
Arrow then deletes the file and tries again.

One rename is one step, as in a name node; Arrow's second try is another, so that somebody may come between.
"""

import os
import threading
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector, FileSystemHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem


def hdfs_in(folder: Path) -> PyFileSystem:
    return PyFileSystem(HdfsRules(folder))


class HdfsRules(FileSystemHandler):  # type: ignore[misc]
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = SubTreeFileSystem(str(folder), LocalFileSystem())
        self._name_node = threading.Lock()

    def move(self, src: str, dest: str) -> None:
        source, target = self._folder / src.lstrip("/"), self._folder / dest.lstrip("/")
        if self._rename(source, target):
            return
        if source.is_file() and target.is_file():
            target.unlink()
            if self._rename(source, target):
                return
        raise OSError(5, f"HDFS rename failed for {src}")

    def _rename(self, source: Path, target: Path) -> bool:
        with self._name_node:
            if target.is_dir():
                target = target / source.name
            if target.exists() or not source.exists():
                return False
            os.rename(source, target)
            return True

    def delete_dir(self, path: str) -> None:
        with self._name_node:
            self._files.delete_dir(path)

    def get_type_name(self) -> str:
        return "hdfs-rules"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: FileSelector) -> Any:
        return self._files.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._files.create_dir(path, recursive=recursive)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("A store below a folder never empties the whole file system.")

    def delete_file(self, path: str) -> None:
        self._files.delete_file(path)

    def copy_file(self, src: str, dest: str) -> None:
        self._files.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._files.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._files.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._files.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError("A file of a store is written once, as a whole: nothing is appended.")
