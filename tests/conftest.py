"""In which order tests run, and what the processes that run them share (helpers/shared.py)."""

import length

# No process is left alone at the end with a file that takes a while.
LONGEST_FIRST = (
    "test_keras_programs.py",
    "test_train_command.py",
    "test_run.py",
    "test_ends.py",
    "test_workers_command.py",
    "test_faults.py",
    "test_warm_start.py",
    "test_distribution.py",
    "test_collectives.py",
    "test_eval_command.py",
    "test_pictures_command.py",
    "test_planted_errors.py",
    "test_docs.py",
)


def pytest_configure(config):
    """Before the files of tests are read."""
    length.all_tests = "not long" not in config.option.markexpr
    hands_out = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if not hands_out:  # to other processes; importing TensorFlow would hold them up
        import shared

        config.pluginmanager.register(shared)


def pytest_collection_modifyitems(items):
    """The files that take longest begin; the others are in their order."""
    place = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
