"""What Keras callbacks remember, for a run that resumes: their attributes that are plain data.

Keras saves no callbacks. What `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` and most of
those that people write remember are numbers, arrays, and lists and dicts of these.
"""

import base64
import io
from collections.abc import Mapping, Sequence

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
        self._callbacks, self._begun = callbacks, list(map(_encoded, callbacks))

    def collect(self) -> dict:
        """Place and class of each callback to what it remembers, as JSON can hold it."""
        both = zip(map(_encoded, self._callbacks), self._begun, strict=True)
        changed = (
            {name: value for name, value in now.items() if begun.get(name, _Other) != value}
            for now, begun in both
        )
        return dict(zip(map(_key, enumerate(self._callbacks)), changed, strict=True))

    def restore(self, notes: Mapping) -> None:
        """Gives callbacks what those of their place and class remembered."""
        for place, callback in enumerate(self._callbacks):
            for name, value in notes.get(_key((place, callback)), {}).items():
                setattr(callback, name, _decode(value))


def _key(place_and_callback: tuple) -> str:
    place, callback = place_and_callback
    return f"{place} {type(callback).__name__}"


def _encoded(callback: keras.callbacks.Callback) -> dict:
    """Its attributes that are plain data, as JSON can hold them."""
    encoded = {name: _encode(value) for name, value in vars(callback).items()}
    return {
        name: value
        for name, value in encoded.items()
        if name not in _NOT_STATE and value is not _Other
    }


class _Other:
    """In place of a value that is not plain data."""


def _encode(value):
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        with io.BytesIO() as file:
            np.save(file, value, allow_pickle=False)
            return {_ARRAY: base64.b64encode(file.getvalue()).decode()}
    if isinstance(value, (list, tuple)):
        items = [_encode(item) for item in value]
        return _Other if _Other in items else items
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        items = {key: _encode(item) for key, item in value.items()}
        return _Other if _Other in items.values() else items
    return _Other


def _decode(value):
    if isinstance(value, Mapping):
        if _ARRAY in value:
            packed = io.BytesIO(base64.b64decode(value[_ARRAY]))
            array = np.load(packed, allow_pickle=False)
            return array[()]
        return {key: _decode(item) for key, item in value.items()}
    return [_decode(item) for item in value] if isinstance(value, list) else value
