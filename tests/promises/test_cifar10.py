"""The main job on the real images: CIFAR-10, JPEG q75, where TOWERS_TEST_DATA_DIR has it."""

import pytest
import scripts

pytestmark = pytest.mark.usefixtures("whole_networks")


@pytest.mark.long
@pytest.mark.whole_program
@pytest.mark.pitfall(12)
def test_one_epoch_of_the_tutorial_learns_on_two_towers(cifar10_dir, forked_command, tmp_path):
    """About half a minute. Three seeds gave 47.8 to 49.2 % after this epoch; chance is 10 %."""
    folder = tmp_path / "run"
    flags = f"--data_dir={cifar10_dir}", f"--train_dir={folder}", "--train_epochs=1"
    trained = forked_command("train.py", *flags, "--num_towers=2")
    assert (trained.returncode, trained.stderr) == (0, "")
    final = scripts.final_summary(folder)
    assert (final["step"], final["examples_seen"]) == (391, 50_048)
    assert final["val_accuracy"] > 0.44

    evaluated = forked_command("eval.py", f"--train_dir={folder}", "--global_batch_size=999")
    assert evaluated.returncode == 0, evaluated.stderr
    [line] = scripts.lines_of(folder / "eval.jsonl")
    assert line["count"] == 10_000
    assert line["accuracy"] == pytest.approx(final["val_accuracy"], rel=1e-6)
