"""`tidegate check`: runs a program up to its first query, and says whether that could start from a checkpoint.

Nothing is started, read from the streams or written by Tidegate; what else the program does before, it does.
"""

import runpy
import sys
from pathlib import Path

from tidegate.api.trial import TrialEnded, trying
from tidegate.coordinator.inspection import Found, Location, open_path
from tidegate.coordinator.restore_trial import no_checkpoint
from tidegate.model.errors import UserError


def run(path: str, file: str) -> int:
    """Exit code 1 if it cannot be restored."""
    if not Path(file).is_file():
        raise UserError(f"There is no file {file!r}: name the Python program that starts the query.")
    with trying(_found(path)) as trial:
        arguments, folders = sys.argv, sys.path[:]
        sys.argv, sys.path[:0] = [file], [str(Path(file).resolve().parent)]
        try:
            runpy.run_path(file, run_name="__main__")
        except TrialEnded:
            pass
        finally:
            sys.argv, sys.path[:] = arguments, folders
    if trial.report is None:
        raise UserError(
            f"{file!r} has ended without tg.writeStream(...).start(): name the program that starts the query."
        )
    for line in trial.report.lines:
        print(line)
    return 0 if trial.report.refusal is None else 1


def _found(path: str) -> Found:
    """Of a location without any checkpoint nothing needs to be tried."""
    found = open_path(path)
    if isinstance(found, Location) and not found.retained():
        raise UserError(no_checkpoint(found))
    return found
