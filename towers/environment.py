"""What TensorFlow and Keras read from the environment as they are imported."""

import os
import sys
import warnings

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_VARIABLES = {"KERAS_BACKEND": "tensorflow", _ONEDNN: "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def setup() -> None:
    """Sets three environment variables before TensorFlow is imported, where they are not set yet.

    `import towers` calls this. KERAS_BACKEND=tensorflow: a step is a graph of TensorFlow.
    TF_ENABLE_ONEDNN_OPTS=1: by itself, TensorFlow 2.21 uses oneDNN's kernels only on processors
    with instructions made for networks, such as AVX-512 VNNI; on others a step takes up to 1.7
    times as long without them (docs/speed.md). TF_CPP_MIN_LOG_LEVEL=3: TensorFlow prints fatal
    errors only, once it has started; others are exceptions.

    After TensorFlow nothing is set; a warning says what to do where it computes without oneDNN
    though nobody chose that.

    Raises:
      ImportError: Keras has another backend.
    """
    if "tensorflow" not in sys.modules:
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
    elif _ONEDNN not in os.environ and not _computes_with_onednn():
        warnings.warn(
            "TensorFlow was imported before towers and computes without oneDNN, which is slower: "
            f"import towers first, or set the environment variable {_ONEDNN}=1 (0: as it is)",
            stacklevel=3,
        )
    keras = sys.modules.get("keras")
    backend = keras.config.backend() if keras else os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        # Named after this package: then a command says it in one line, without a traceback.
        raise ImportError(
            f"towers needs Keras on TensorFlow, and its backend is {backend!r}: set the "
            "environment variable KERAS_BACKEND=tensorflow before Keras is imported",
            name="towers",
        )


def _computes_with_onednn() -> bool:
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()
