"""What Keras callbacks remember, for a run that resumes: their attributes that are plain data.

Keras saves no callbacks. What `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` and most of
those that people write remember are numbers, texts and arrays, and lists, tuples, sets and dicts of
these. Anything else, such as a deque, a metric or a variable, begins anew.
"""

import base64
import collections
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

_ARRAY = "__array__"
_NOT_STATE = ("_model", "params", "validation_data")  # given to a callback, not remembered by it


class Memory:
    """What callbacks of this process remember: what has changed since they began.

    What a program gives a callback, such as its patience, stays as the program has it now.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        """Notes what there is; to be made after `on_train_begin`."""
        self._callbacks = callbacks
        self._begun = [_encoded(callback, _digest) for callback in callbacks]

    def collect(self) -> dict:
        """Class and number of each callback to what it remembers, as JSON can hold it."""
        remembered = []
        for callback, begun in zip(self._callbacks, self._begun, strict=True):
            now = _encoded(callback, _digest)
            changed = [name for name in now if begun.get(name, _Other) != now[name]]
            remembered.append({name: _encode(vars(callback)[name], _whole) for name in changed})
        return dict(zip(_keys(self._callbacks), remembered, strict=True))

    def restore(self, notes: Mapping) -> None:
        """Gives callbacks what those of their class and number remembered."""
        for key, callback in zip(_keys(self._callbacks), self._callbacks, strict=True):
            remembered = notes.get(key, {})
            if "min_delta" in remembered and getattr(callback, "monitor_op", callback) is None:
                callback._set_monitor_op()  # Keras negates min_delta there: once, not again
            for name, value in remembered.items():
                setattr(callback, name, _decode(value))


def _keys(callbacks: Sequence[keras.callbacks.Callback]) -> list[str]:
    """The class of each callback, and its number among those of its class."""
    numbers: collections.Counter = collections.Counter()
    keys = []
    for callback in callbacks:
        name = type(callback).__name__
        keys.append(f"{name} {numbers[name]}")
        numbers[name] += 1
    return keys


def _encoded(callback: keras.callbacks.Callback, of_array: Callable) -> dict:
    """Its attributes that are plain data, as JSON can hold them."""
    encoded = {name: _encode(value, of_array) for name, value in vars(callback).items()}
    return {
        name: value
        for name, value in encoded.items()
        if name not in _NOT_STATE and value is not _Other
    }


def _whole(array: np.ndarray) -> str:
    """All of an array as text."""
    with io.BytesIO() as file:
        np.save(file, array, allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode()


def _digest(array: np.ndarray) -> str:
    """What tells an array from another one: callbacks may hold large ones that never change."""
    kind = f"{array.dtype} {array.shape} ".encode()
    return hashlib.sha256(kind + np.ascontiguousarray(array).tobytes()).hexdigest()


class _Other:
    """In place of a value that is not plain data."""


# Of what JSON does not have.
_KINDS: dict[type, str] = {tuple: "__tuple__", set: "__set__", dict: "__dict__"}


def _encode(value, of_array: Callable):
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {_ARRAY: of_array(value)}
    if type(value) not in (list, tuple, set, dict):
        return _Other
    parts = value.items() if type(value) is dict else value
    items = [_encode(item, of_array) for item in parts]
    if _Other in items:
        return _Other
    return items if type(value) is list else {_KINDS[type(value)]: items}


def _decode(value):
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == _ARRAY:
        packed = io.BytesIO(base64.b64decode(content))
        return np.load(packed, allow_pickle=False)[()]
    (made,) = [made for made, name in _KINDS.items() if name == kind]
    return made(_decode(content))
