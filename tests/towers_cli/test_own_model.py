"""`--model=package.module:function`: a network of the user's own, and what can be wrong with it."""

import re
import sys

import keras
import pytest
import scripts

from towers_cli import own_model

MODULE = """
import keras
import tensorflow as tf

L = keras.layers

class Unsaved(L.Layer):
    def __init__(self, size):
        super().__init__()

    def call(self, x):
        return x

class Printing(L.Layer):
    def call(self, x):
        tf.print(x[0, 0, 0])
        return x

class Late(L.Layer):
    def call(self, x, training=False):
        if training:
            raise ValueError("only in training")
        return x

def made(image_shape, *layers, classes=10):
    return keras.Sequential([keras.Input(image_shape), *layers, L.Flatten(), L.Dense(classes)])

def build(shape, classes):
    convolution = L.Conv2D(8, 3, strides=4, activation="relu")
    layers = [convolution, L.BatchNormalization(), L.Dropout(0.1), L.Flatten()]
    return keras.Sequential([*layers, L.Dense(classes)])  # which is not built yet

three = lambda shape, classes: made(shape, classes=3)
smaller = lambda shape, classes: made((5,))
unsaved = lambda shape, classes: made(shape, Unsaved(object()))
nothing = lambda shape, classes: None
wrong = lambda shape, classes: L.Dense(-1)
frozen = lambda *given: keras.Sequential([build(*given)], trainable=False)
ends_with_softmax = lambda *given: keras.Sequential([build(*given), L.Softmax()])
late = lambda shape, classes: made(shape, Late(), classes=classes)
prints = lambda shape, classes: made(shape, Printing())
number = 3

def no_kernel(shape, classes):
    x = keras.Input(shape)
    return keras.Model(x, L.BatchNormalization()(x[:, 0, :classes, 0]))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a user's module, where the command is called."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import keras\n\nkeras.no_such_thing\n")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    (tmp_path / "typo.py").write_text("def build(:\n")
    (tmp_path / "exits.py").write_text("import sys\n\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


class TestARunOfIt:
    def test_has_weights_by_the_seed_and_computes_in_the_type_that_was_asked_for(self, here):
        before, policy = keras.config.dtype_policy(), keras.DTypePolicy("mixed_bfloat16")
        build = own_model.network("mine:build").build
        models = [build((32, 32, 3), 10, policy, seed) for seed in (0, 0, 1)]
        first, same, other = (model.get_weights()[0] for model in models)
        assert (first == same).all() and (first != other).all()
        assert {layer.compute_dtype for layer in models[0].layers} == {"bfloat16"}
        assert {weight.dtype for weight in models[0].trainable_variables} == {"float32"}
        assert keras.config.dtype_policy() is before

    @pytest.mark.parametrize(
        "change",
        [
            ("Dropout(0.1)", "Dropout(0.2)"),
            ("BatchNormalization()", "BatchNormalization(trainable=False)"),
        ],
    )
    def test_whose_function_has_changed_is_another(self, here, change):
        scripts.trained(here / "run", "--model=mine:build", "--max_steps=1")
        (here / "mine.py").write_text(MODULE.replace(*change))
        sys.modules.pop("mine")
        before = scripts.contents(here / "run")
        done = scripts.train(here / "run", "--model=mine:build", "--max_steps=2")
        assert done.returncode == 1
        assert f"--train_dir={here / 'run'} " in done.stderr and "layers " in done.stderr
        done = scripts.run("eval", f"--train_dir={here / 'run'}")
        assert done.returncode == 2
        assert "--model=mine:build: " in done.stderr
        assert scripts.contents(here / "run") == before


@pytest.mark.parametrize(
    ("model", "flag", "code", "reason"),
    [
        ("late", "--max_steps=1", 2, "--model=mine:late: .*only in training.*/mine.py, line "),
        ("prints", "--jit_compile", 1, "jit_compile=True: .*StringFormat"),
        ("no_kernel", "--weight_decay=0.1", 2, "--weight_decay=0.1: "),
    ],
)
def test_what_cannot_be_trained_is_named(here, model, flag, code, reason):
    done = scripts.train(here / "run", f"--model=mine:{model}", flag)
    assert done.returncode == code
    assert re.match(f"train.py: error: {reason}", done.stderr)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("none:build", "'none'"), ("mine.sub:build", "'mine'"),
        ("needs:build", "'no_such_package'"), ("broken:build", "{here}/broken.py, line 3"),
        ("typo:build", "SyntaxError: "), ("mine:other", "'other'"),
        ("mine:number", "not callable"), ("mine:wrong", "{here}/mine.py, line "),
        ("mine:nothing", "NoneType"), ("mine:three", r"\(None, 3\)"),
        ("mine:smaller", "ValueError: "), ("mine:ends_with_softmax", "softmax"),
        ("mine:frozen", "trainable"), ("exits:build", "SystemExit: 0"),
        ("mine:unsaved", "ValueError: "),
        *((name, "cifarnet, resnet") for name in ("mine", ":build", "mine:build()")),
    ],
)  # fmt: skip
def test_what_is_no_network_is_refused(here, model, reason):
    done = scripts.train(here / "run", f"--model={model}")
    assert done.returncode == 2
    message = f"train.py: error: --model={re.escape(model)}: .*{reason.format(here=here)}"
    assert re.match(message, done.stderr)
    assert not (here / "run").exists()
