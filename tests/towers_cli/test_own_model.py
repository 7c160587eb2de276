"""`--model=package.module:function`: a network of the user's own, and what can be wrong with it."""

import json
import sys

import forked
import keras
import pytest
import scripts
from PIL import Image

from towers.runs import definition
from towers_cli import own_model, predict

pytestmark = pytest.mark.usefixtures("cache")

MODULE = """
import keras
import tensorflow as tf

def build(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape),
        keras.layers.Conv2D(8, 3, strides=4, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(num_classes),
    ])

def three(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(),
                             keras.layers.Dense(3)])

def smaller(image_shape, num_classes):
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(num_classes)])

class Own(keras.layers.Layer):
    def __init__(self, size):
        super().__init__()

    def call(self, x):
        return x

def unsaved(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), Own(object()), keras.layers.Flatten(),
                             keras.layers.Dense(num_classes)])

def nothing(image_shape, num_classes):
    pass

def wrong(image_shape, num_classes):
    return keras.layers.Dense(-1)

def alone():
    pass

def ends_with_softmax(image_shape, num_classes):
    model = build(image_shape, num_classes)
    return keras.Sequential([model, keras.layers.Softmax()])

def frozen(image_shape, num_classes):
    model = build(image_shape, num_classes)
    model.trainable = False
    return model

class Sub(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.flat, self.out = keras.layers.Flatten(), keras.layers.Dense(num_classes)

    def call(self, x):
        return self.out(self.flat(x))

    def get_config(self):
        return {"num_classes": self.out.units}

def subclass(image_shape, num_classes):
    model = Sub(num_classes)
    model(keras.ops.zeros((1, *image_shape)))
    return model

def unbuilt(image_shape, num_classes):
    return Sub(num_classes)

class Late(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            raise KeyError("only in training")
        return x

def fails_late(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), Late(), keras.layers.Flatten(),
                             keras.layers.Dense(num_classes)])

class Printing(keras.layers.Layer):
    def call(self, x):
        tf.print(x[0, 0, 0])
        return x

def prints(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), Printing(), keras.layers.Flatten(),
                             keras.layers.Dense(num_classes)])

@keras.saving.register_keras_serializable("mine")
class Scaled(keras.layers.Layer):
    def call(self, x):
        return x * 2.0

@keras.saving.register_keras_serializable("mine")
class Masked(keras.layers.Layer):
    def build(self, _):
        low = keras.initializers.Constant(float("-inf"))
        self.mask = self.add_weight(name="mask", initializer=low, trainable=False)

    def call(self, x):
        return keras.ops.maximum(x, self.mask)

def masked(image_shape, num_classes):
    return keras.Sequential([keras.Input(image_shape), Masked(), Scaled(), keras.layers.Flatten(),
                             keras.layers.Dense(num_classes)])

number = 3
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
    for name in ("mine", "broken", "needs", "typo", "exits"):
        sys.modules.pop(name, None)


def train(folder, *flags):
    return scripts.train(folder, "--model=mine:build", "--verify_every_steps=1", *flags)


class TestARunOfIt:
    @pytest.mark.long
    def test_has_the_same_bits_on_any_towers(self, here):
        for towers in (1, 2):
            done = train(here / str(towers), f"--num_towers={towers}")
            assert done.returncode == 0, done.stderr
        assert len(scripts.hash_lines(here / "1")) == 5
        assert scripts.hash_lines(here / "1") == scripts.hash_lines(here / "2")

    def test_has_weights_by_the_seed(self, here):
        found = [
            own_model.network("mine:build").build(
                (32, 32, 3), 10, keras.DTypePolicy("float32"), seed
            )
            for seed in (0, 0, 1)
        ]
        first, same, other = (model.get_weights()[0] for model in found)
        assert (first == same).all() and (first != other).all()

    def test_computes_in_the_type_that_was_asked_for(self, here):
        before = keras.config.dtype_policy()
        model = own_model.network("mine:build").build(
            (32, 32, 3), 10, keras.DTypePolicy("mixed_bfloat16"), 0
        )
        assert {layer.compute_dtype for layer in model.layers} == {"bfloat16"}
        assert {weight.dtype for weight in model.trainable_variables} == {"float32"}
        assert keras.config.dtype_policy() is before

    def test_goes_on_and_is_evaluated(self, here):
        folder = here / "run"
        assert train(folder, "--max_steps=2").returncode == 0
        done = train(folder, "--max_steps=3")
        assert "continuing at step 2" in done.stdout
        evaluated = scripts.run("eval", f"--train_dir={folder}")
        assert evaluated.returncode == 0, evaluated.stderr
        [line] = scripts.lines_of(folder / "eval.jsonl")
        own = scripts.final_summary(folder)["val_accuracy"]
        assert line["accuracy"] == pytest.approx(own, abs=1e-7)

    def test_says_what_it_is_and_decides_the_run(self, here):
        done = train(here / "run", "--max_steps=1", "--preprocessing=crop_flip_colour")
        assert "mine:build, float32, images 24 x 24 x 3" in done.stdout
        chosen = json.loads((here / "run" / "config.json").read_text())["settings"]
        assert (chosen["model"], chosen["weight_decay"]) == ("mine:build", 0.0)
        done = train(here / "run", "--max_steps=2")
        assert done.returncode == 1
        assert "--preprocessing=pad_crop_flip (the run has crop_flip_colour)" in done.stderr

    @pytest.mark.parametrize(
        "change",
        [
            ("Dropout(0.1)", "Dropout(0.2)"),
            ("BatchNormalization()", "BatchNormalization(trainable=False)"),
        ],
    )
    def test_whose_function_has_changed_is_another(self, here, change):
        assert train(here / "run", "--max_steps=1").returncode == 0
        (here / "mine.py").write_text(MODULE.replace(*change))
        sys.modules.pop("mine")
        before = scripts.contents(here / "run")
        done = train(here / "run", "--max_steps=2")
        assert done.returncode == 1
        assert f"--train_dir={here / 'run'} holds a run with other settings: layers " in done.stderr
        done = scripts.run("eval", f"--train_dir={here / 'run'}")
        assert done.returncode == 2
        assert "--model=mine:build: is no longer the network of the run" in done.stderr
        assert scripts.contents(here / "run") == before

    def test_is_known_whatever_keras_has_numbered(self, here):
        """Names of layers depend on what a process has built before."""
        build = own_model.network("mine:build").build
        arguments = (32, 32, 3), 10, keras.DTypePolicy("float32"), 0
        first, second = (definition.layers(build(*arguments)) for _ in range(2))
        assert first == second

    @pytest.mark.parametrize(
        "model",
        [
            "mine:subclass",
            "mine:masked",  # which has a constant that is not finite
            pytest.param("mine:unbuilt", marks=pytest.mark.long),
        ],
    )
    def test_of_another_kind_is_trained_and_evaluated(self, here, model):
        done = scripts.train(here / "run", f"--model={model}", "--max_steps=1")
        assert done.returncode == 0, done.stderr
        evaluated = scripts.run("eval", f"--train_dir={here / 'run'}")
        assert evaluated.returncode == 0, evaluated.stderr

    def test_with_layers_of_its_own_is_asked_about_pictures(self, here, capsys):
        done = scripts.train(here / "run", "--model=mine:masked", "--max_steps=1")
        assert done.returncode == 0, done.stderr
        Image.effect_noise((40, 40), 50).save("a.png")
        assert predict.main([str(here / "run"), "a.png"]) == 0
        assert capsys.readouterr().out.startswith("a.png: ")

    def test_that_fails_in_training_is_named(self, here):
        done = scripts.train(here / "run", "--model=mine:fails_late", "--max_steps=1")
        assert done.returncode == 2
        assert "--model=mine:fails_late: training it: KeyError: " in done.stderr
        assert "only in training" in done.stderr
        assert f"({here / 'mine.py'}, line " in done.stderr

    def test_that_xla_cannot_compile_is_said_in_a_sentence(self, here):
        done = scripts.train(here / "run", "--model=mine:prints", "--max_steps=1", "--jit_compile")
        assert done.returncode == 1
        said = done.stderr.splitlines()[-1]
        assert said.startswith("train.py: error: jit_compile=True: XLA cannot compile this model")
        assert "StringFormat" in said


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("none:build", "importing it: ModuleNotFoundError: No module named 'none'; it is looked"),
        ("mine.sub:build", "'mine' is not a package"),
        ("needs:build", "No module named 'no_such_package' ("),
        ("broken:build", "importing it: AttributeError: "),
        ("typo:build", "importing it: SyntaxError: "),
        ("mine:other", "mine.py has no function other"),
        ("mine:number", "mine.py has no function number"),
        ("mine:alone", "building it: TypeError: alone() takes 0 positional arguments but 2"),
        ("mine:wrong", "building it: ValueError: Received an invalid value for `units`"),
        ("mine:nothing", "returned a NoneType: must be a Keras model"),
        ("mine:three", "gives (None, 3) for images of [32, 32, 3]: must be (None, 10)"),
        ("mine:smaller", "calling it: ValueError: "),
        ("mine:ends_with_softmax", "ends with a softmax: must give logits"),
        ("mine:frozen", "has no trainable weight: must have one"),
        ("exits:build", "importing it: SystemExit: 0"),
        ("mine:unsaved", "saving it: ValueError: Keras cannot save the model"),
        *((name, "must be one of cifarnet, resnet") for name in ("mine", ":build", "mine:build()")),
    ],
)
def test_what_is_no_network_is_refused(here, model, reason):
    done = scripts.train(here / "run", f"--model={model}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"train.py: error: --model={model}: ")
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
    assert not (here / "run").exists()


def test_the_line_of_the_fault_is_named(here):
    done = scripts.train(here / "run", "--model=broken:build")
    assert f"({here / 'broken.py'}, line 3)" in done.stderr
    done = scripts.train(here / "run", "--model=mine:wrong")
    line = MODULE.split("\n").index("    return keras.layers.Dense(-1)") + 1
    assert f"({here / 'mine.py'}, line {line})" in done.stderr


@pytest.mark.whole_program
def test_a_recipe_in_a_file(here):
    """The command as a process: the module lies where it is called, and not beside it."""
    recipe = [line for line in scripts.small_run(here / "run") if "max_steps" not in line]
    (here / "recipe.txt").write_text(
        "\n".join(["# my own", *recipe, "--model=mine:build", "--max_steps=9"])
    )
    call = [
        sys.executable,
        str(scripts.ROOT / "train.py"),
        "--flagfile=recipe.txt",
        "--max_steps=2",
    ]
    done = forked.run(call, cwd=here, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert scripts.final_summary(here / "run")["step"] == 2
