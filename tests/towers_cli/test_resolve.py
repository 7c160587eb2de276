"""What follows from settings and a machine."""

import pytest
import scripts

from towers_cli import resolve, settings


@pytest.mark.parametrize(
    ("num_microbatches", "num_gpus", "jit_compile", "threads"),
    [(1, 0, False, 6), (2, 0, False, 1), (1, 0, True, 6), (2, 0, True, 8), (1, 1, False, 8),
     (8, 2, True, 8)],
)  # fmt: skip
def test_default_threads_of_six_cores(num_microbatches, num_gpus, jit_compile, threads):
    assert resolve.default_threads(num_microbatches, num_gpus, 6, jit_compile) == threads


class TestTheDefaultsOfGpus:
    @pytest.mark.parametrize(
        ("flags", "workers", "size", "device"),
        [
            (["--recipe=shapes", "--global_batch_size=2048"], 1, 256, "gpu"),
            (["--recipe=fast"], 2, 128, "cpu"),  # the recipe's
            (["--recipe=shapes"], 1, 64, "gpu"),  # the whole batch
            (["--global_batch_size=512"], 1, 128, "cpu"),
            (["--microbatch_size=16", "--parameter_device=gpu"], 1, 16, "gpu"),
            (["--recipe=shapes", "--parameter_device=cpu"], 1, 64, "cpu"),
        ],
    )
    def test_do_not_depend_on_how_many_there_are(self, flags, workers, size, device):
        chosen = scripts.settings_of("--gpu_defaults", *flags)
        for num_gpus in (1, 8):
            resolved = resolve.resolved(chosen, num_gpus, 4, workers)
            assert resolved.jit_compile and resolved.num_towers == num_gpus
            assert (resolved.microbatch_size, resolved.parameter_device) == (size, device)

    def test_do_not_override_a_flag(self):
        chosen = scripts.settings_of("--gpu_defaults", "--nojit_compile")
        assert resolve.resolved(chosen, 1, 4).jit_compile is False

    def test_are_for_gpus(self):
        with pytest.raises(settings.SettingsError, match="--gpu_defaults"):
            resolve.resolved(scripts.settings_of("--gpu_defaults"), 0, 4)
