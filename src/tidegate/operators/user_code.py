"""How an error of the user's own code is told."""

import traceback
from typing import Final

from greenlet import GreenletExit

from tidegate.model.errors import UserCodeFailure

# A call that is given up, and somebody who ends the process. Whatever else a user's call raises is told as its failure:
# `sys.exit()` and a panic of native code would else end the slot, and nobody would hear why.
PASSING_THROUGH: Final = (GreenletExit, KeyboardInterrupt)


def user_code_failure(error: BaseException, *, called: str) -> UserCodeFailure:
    """With the user's traceback as text: the error itself may not survive the way to the driver."""
    # The first frame is the operator's own call.
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    return UserCodeFailure(f"{called} raised {type(error).__name__}: {error}\n{text}")
