"""How TensorFlow is imported: garbage is not collected, and Matplotlib is left for later."""

import gc
import importlib
import subprocess
import sys

import pytest
import scripts

from towers.support import imports

# Matplotlib is among the packages that the tests need; Keras imports it where it is there.
PROGRAM = """
import gc, sys

collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
import towers

assert collections.count(2) == 0, collections
assert gc.isenabled() and not gc.get_freeze_count()
assert len(gc.get_objects(generation=2)) > 300_000  # they count as old
assert not [name for name in sys.modules if name.startswith("matplotlib")]

import keras
import numpy as np
from keras.src.visualization import plot_bounding_box_gallery, plot_image_gallery

for stand_in in plot_image_gallery.plt, plot_bounding_box_gallery.patches:
    assert type(stand_in).__name__ == "_StandIn"  # else Keras no longer imports it
keras.visualization.plot_image_gallery(
    np.zeros((1, 8, 8, 3)), value_range=(0, 255), rows=1, cols=1, path=sys.argv[1]
)

import matplotlib.pyplot

assert matplotlib.pyplot.__file__ and matplotlib.pyplot.figure is plot_image_gallery.plt.figure
"""


@pytest.mark.whole_program
def test_an_import_collects_no_garbage_and_leaves_matplotlib_for_later(tmp_path):
    gallery = tmp_path / "gallery.png"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(gallery)],
        cwd=scripts.ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert gallery.stat().st_size


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package with two modules, that can be imported and is not yet."""
    name = "imported_in_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("size = 3\n")
    (folder / "plot.py").write_text(f"import {name}\n\ndef twice():\n    return 2 * {name}.size\n")
    (folder / "other.py").write_text(f"import {name}\n\nsize = {name}.size + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield name
    for new in set(sys.modules) - before:
        if new.split(".")[0] == name:
            del sys.modules[new]


def modules_of(package: str) -> list[str]:
    """What of a package is imported."""
    return [name for name in sys.modules if name.split(".")[0] == package]


class TestImportedWhenUsed:
    def test_its_first_use_imports_it(self, package):
        found = {}
        with imports._imported_when_used(package, "plot"):
            exec(f"import {package}.plot as plot\nfrom {package} import plot as too", found)
        assert not modules_of(package)
        assert found["plot"].twice() == found["too"].twice() == 6
        assert sorted(modules_of(package)) == [package, f"{package}.plot"]
        real = importlib.import_module(f"{package}.plot")
        assert real.__file__ and real.twice is found["plot"].twice

    def test_so_does_a_use_within(self, package):
        with imports._imported_when_used(package, "plot"):
            stand_in = importlib.import_module(package)
            assert stand_in.size == 3
            assert importlib.import_module(package).__file__  # a real one from now on
        assert modules_of(package) == [package]

    def test_and_an_import_of_another_of_its_modules_within(self, package):
        with imports._imported_when_used(package, "plot"):
            assert importlib.import_module(f"{package}.other").size == 4

    def test_a_question_for_its_file_does_not(self, package):
        with imports._imported_when_used(package, "plot"):
            assert not hasattr(sys.modules[package], "__file__")
            assert modules_of(package) == [package, f"{package}.plot"]

    def test_nothing_stays_after_an_error(self, package):
        with pytest.raises(KeyError), imports._imported_when_used(package, "plot"):
            raise KeyError
        assert not modules_of(package)

    def test_a_module_that_is_there_stays(self, package):
        real = importlib.import_module(package)
        with imports._imported_when_used(package, "plot"):
            assert importlib.import_module(package) is real
        assert sys.modules[package] is real

    def test_what_is_not_installed_cannot_be_imported(self):
        missing = pytest.raises(ModuleNotFoundError)
        with imports._imported_when_used("not_a_package", "plot"), missing:
            importlib.import_module("not_a_package")


class TestNoGarbageCollected:
    @pytest.mark.parametrize("is_on", [True, False])
    def test_the_collector_is_off_within_and_as_before_afterwards(self, is_on):
        was_on = gc.isenabled()
        (gc.enable if is_on else gc.disable)()
        try:
            with pytest.raises(KeyError), imports._no_garbage_collected():
                assert not gc.isenabled()
                raise KeyError
            assert gc.isenabled() == is_on
        finally:
            (gc.enable if was_on else gc.disable)()

    def test_frozen_objects_stay_frozen(self):
        gc.freeze()
        frozen = gc.get_freeze_count()
        with imports._no_garbage_collected():
            pass
        assert gc.get_freeze_count() == frozen > 0
