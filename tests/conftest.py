"""In which order tests run, and what the processes that run them share (helpers/shared.py)."""

import length


def pytest_configure(config):
    """Before the files of tests are read."""
    length.all_tests = "not long" not in config.option.markexpr
    hands_out = getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")
    if not hands_out:  # to other processes; importing TensorFlow would hold them up
        import shared

        config.pluginmanager.register(shared)


def pytest_collection_modifyitems(items):
    """Files that take long begin: large ones, and those of workers, which wait for each other."""
    weights = {"multi_worker": 4}
    items.sort(key=lambda item: -item.path.stat().st_size * weights.get(item.path.parent.name, 1))
