"""What TensorFlow and Keras read from the environment as they are imported."""

import os
import sys

_VARIABLES = {
    "KERAS_BACKEND": "tensorflow",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def setup() -> None:
    """Sets three environment variables before TensorFlow is imported, where they are not set yet.

    `import towers` calls this. KERAS_BACKEND=tensorflow: a step is a graph of TensorFlow.
    TF_ENABLE_ONEDNN_OPTS=1: by itself, TensorFlow 2.21 uses oneDNN's kernels only on processors
    with instructions made for networks, such as AVX-512 VNNI; on others a step takes up to 1.7
    times as long without them (docs/speed.md). TF_CPP_MIN_LOG_LEVEL=3: TensorFlow prints fatal
    errors only, once it has started; others are exceptions.

    Once TensorFlow is imported nothing is set.

    Raises:
      ImportError: Keras has another backend.
    """
    if "tensorflow" not in sys.modules:
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
    keras = sys.modules.get("keras")
    backend = keras.config.backend() if keras else os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        # Named after this package: then a command says it in one line, without a traceback.
        raise ImportError(
            f"towers needs Keras on TensorFlow, and its backend is {backend!r}: set the "
            "environment variable KERAS_BACKEND=tensorflow before Keras is imported",
            name="towers",
        )
