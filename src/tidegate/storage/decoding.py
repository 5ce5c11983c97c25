"""Stored and sent values of msgspec's types, read in any thread.

msgspec prepares a type when it is first read, and two threads that do so at the same time crash the process. So each
is prepared once, behind a lock. Must never be asked for a type that is made anew for each call.
"""

from threading import Lock
from typing import Any, TypeAlias, TypeVar, overload

import msgspec

_Data: TypeAlias = bytes | bytearray | memoryview
_Decoded = TypeVar("_Decoded")

_preparing = Lock()
_from_msgpack: dict[Any, "msgspec.msgpack.Decoder[Any]"] = {}
_from_json: dict[Any, "msgspec.json.Decoder[Any]"] = {}


@overload
def from_msgpack(data: _Data, kind: type[_Decoded]) -> _Decoded: ...
@overload
def from_msgpack(data: _Data, kind: Any) -> Any: ...
def from_msgpack(data: _Data, kind: Any) -> Any:
    decoder = _from_msgpack.get(kind)
    if decoder is None:
        with _preparing:
            decoder = _from_msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(data)


@overload
def from_json(data: _Data | str, kind: type[_Decoded]) -> _Decoded: ...
@overload
def from_json(data: _Data | str, kind: Any) -> Any: ...
def from_json(data: _Data | str, kind: Any) -> Any:
    decoder = _from_json.get(kind)
    if decoder is None:
        with _preparing:
            decoder = _from_json[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(data)
