"""What Keras callbacks remember, for a run that resumes: their attributes that are plain data.

Keras saves no callbacks. What `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` and most of
those that people write remember are numbers, texts and arrays, and lists, tuples, sets and dicts of
these. Anything else, such as a deque, a metric or a variable, begins anew.
"""

import base64
import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

# Given to a callback, or of this process's clock, and not remembered by it.
_NOT_STATE = ("_model", "params", "validation_data", "_since")


class Memory:
    """What callbacks of this process remember: what has changed since they began.

    What a program gives a callback, such as its patience, stays as the program has it now.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        """Notes what there is; to be made after `on_train_begin`."""
        names = [type(callback).__name__ for callback in callbacks]
        self._callbacks = {  # by class, and number among those of its class
            f"{name} {names[:place].count(name)}": callbacks[place]
            for place, name in enumerate(names)
        }
        # Hashes: callbacks may hold large arrays that never change.
        self._begun = {
            key: {name: _hash(value) for name, value in _encoded(callback)}
            for key, callback in self._callbacks.items()
        }

    def collect(self) -> dict:
        """Class and number of each callback to what it remembers, as JSON can hold it."""
        return {
            key: {
                name: value
                for name, value in _encoded(callback)
                if self._begun[key].get(name) != _hash(value)
            }
            for key, callback in self._callbacks.items()
        }

    def restore(self, notes: Mapping) -> None:
        """Gives callbacks what those of their class and number remembered."""
        for key, callback in self._callbacks.items():
            for name, value in notes.get(key, {}).items():
                setattr(callback, name, _decode(value))


def _encoded(callback: keras.callbacks.Callback) -> Iterator[tuple[str, object]]:
    """Its attributes that are plain data, by name, as JSON can hold them."""
    for name, value in vars(callback).items():
        is_sign = name == "min_delta" and hasattr(callback, "monitor_op")  # Keras sets it each time
        if name not in _NOT_STATE and not is_sign:
            with contextlib.suppress(TypeError):  # no plain data
                yield name, _encode(value)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# By the name that stands for each: JSON has no more than one of them.
_KINDS = {"list": list, "tuple": tuple, "set": set, "dict": dict}


def _encode(value):
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype != object:
        with io.BytesIO() as file:
            np.save(file, value, allow_pickle=False)
            return {"array": base64.b64encode(file.getvalue()).decode()}
    if type(value) not in _KINDS.values():
        raise TypeError
    items = value.items() if type(value) is dict else value
    return {type(value).__name__: [_encode(item) for item in items]}


def _decode(value):
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        packed = io.BytesIO(base64.b64decode(content))
        return np.load(packed)[()]
    return _KINDS[kind](map(_decode, content))
