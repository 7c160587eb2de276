"""Keras computes with TensorFlow here, and TensorFlow with oneDNN on a CPU.

With another backend a program would fail deep inside a step.
"""

import json
import os
import sys
from pathlib import Path

_HOW = "set the environment variable KERAS_BACKEND=tensorflow"


def prepare() -> None:
    """What must be done before Keras and TensorFlow are imported; raises what `check` raises."""
    check()
    choose_onednn()


def check() -> None:
    """Checks, without importing Keras, that its backend is TensorFlow.

    Raises:
      ImportError: it is another one, installed or not.
    """
    where, backend = _chosen()
    if backend != "tensorflow":
        # Named after this package: then a command says it in one line, without a traceback.
        raise ImportError(
            f"towers needs Keras on TensorFlow, and {where} says {backend!r}: {_HOW}"
            + (", before Keras is imported" if "keras" in sys.modules else ""),
            name="towers",
        )


def choose_onednn() -> None:
    """Has TensorFlow compute with oneDNN's kernels, if it is not imported yet.

    TensorFlow 2.21 does so by itself only on processors with instructions made for networks, such
    as AVX-512 VNNI; on others a step takes up to 1.7 times as long without (docs/speed.md).
    TF_ENABLE_ONEDNN_OPTS, which this sets, stays as it is where it is set.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def _chosen() -> tuple[str, str]:
    """Where the backend is named, and which one it is, as Keras 3 finds it."""
    keras = sys.modules.get("keras")
    if hasattr(keras, "config"):
        return "keras.config.backend()", keras.config.backend()
    if os.environ.get("KERAS_BACKEND"):
        return "KERAS_BACKEND", os.environ["KERAS_BACKEND"]
    file = _home() / "keras.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # Keras continues without it
        config = {}
    named = config.get("backend") if isinstance(config, dict) else None
    return str(file), named or "tensorflow"


def _home() -> Path:
    if "KERAS_HOME" in os.environ:
        return Path(os.path.expanduser(os.environ["KERAS_HOME"]))
    home = Path(os.path.expanduser("~"))  # stays "~" where no home is known; `Path` would raise
    return (home if os.access(home, os.W_OK) else Path("/tmp")) / ".keras"
