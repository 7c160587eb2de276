"""The main job on the real images: CIFAR-10, JPEG q75, where TOWERS_TEST_DATA_DIR has it."""

import json

import keras
import numpy as np
import pytest
import toys

import towers
from input_pipeline import datasets, images
from towers import weight_decay
from towers.networks import cifarnet

pytestmark = pytest.mark.usefixtures("whole_networks")


@pytest.mark.long
@pytest.mark.whole_program
@pytest.mark.pitfall(12)
def test_one_epoch_of_the_tutorial_learns_on_two_towers(cifar10_dir, forked_command, tmp_path):
    """About half a minute. Three seeds gave 47.8 to 49.2 % after this epoch; chance is 10 %."""
    folder = tmp_path / "run"
    trained = forked_command(
        "train.py",
        f"--data_dir={cifar10_dir}",
        f"--train_dir={folder}",
        "--num_towers=2",
        "--train_epochs=1",
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr == ""
    final = json.loads((folder / "final_model.json").read_text())
    assert (final["step"], final["examples_seen"]) == (391, 50_048)
    assert final["val_accuracy"] > 0.44

    evaluated = forked_command("eval.py", f"--train_dir={folder}", "--global_batch_size=999")
    assert evaluated.returncode == 0, evaluated.stderr
    (line,) = (folder / "eval.jsonl").read_text().splitlines()
    assert json.loads(line)["count"] == 10_000
    assert json.loads(line)["accuracy"] == pytest.approx(final["val_accuracy"], rel=1e-6)


@pytest.fixture(scope="module")
def twenty_batches(cifar10_dir):
    """The first 20 global batches of the tutorial."""
    data = datasets.load("cifar10", str(cifar10_dir), "train")
    how = images.preprocessing("crop_flip_colour", data)
    return list(images.training(data, how, 0).batches(0, 20, global_batch_size=128))


def trained(twenty_batches, num_towers, dtype="float32", rate=0.1, num_microbatches=8, steps=20):
    policy = keras.DTypePolicy(dtype)
    model = toys.on_cpu(lambda: cifarnet.build((24, 24, 3), 10, policy, 0))
    weight_decay.regularize(weight_decay.hidden_dense_kernels(model), 0.004)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)
    model.compile(keras.optimizers.SGD(rate), loss)
    towers.distribute(model, num_towers, microbatch_size=128 // num_microbatches)
    for batch in twenty_batches[:steps]:
        model.train_on_batch(*batch)
    return model.get_weights()


@pytest.mark.long
@pytest.mark.pitfall(19, 20, 24)
@pytest.mark.parametrize(
    ("dtype", "rate", "tolerance", "others", "steps"),
    [
        pytest.param("float64", 0.1, 1e-14, [(2, 2), (1, 4), (4, 8)], 8, marks=pytest.mark.long),
        ("float32", 0.01, 1e-6, [(2, 2)], 20),
    ],
)
def test_other_microbatches_differ_by_rounding_alone(
    twenty_batches, dtype, rate, tolerance, others, steps
):
    """At float32 and rate 0.1 rounding is amplified to 1e-4: docs/same_bits.md."""
    one = trained(twenty_batches, 1, dtype, rate, 1, steps)
    for num_towers, num_microbatches in others:
        run = trained(twenty_batches, num_towers, dtype, rate, num_microbatches, steps)
        for mine, expected in zip(run, one, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=0, atol=tolerance)
