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
    """Files that wait for processes begin, then large ones: no core is idle at the end."""
    items.sort(key=lambda item: ("multi_worker" not in item.path.parts, -item.path.stat().st_size))
