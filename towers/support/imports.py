"""Imports TensorFlow, and Keras with it: without its notices, and faster (docs/speed.md)."""

import contextlib
import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator

from towers.support import noise


def import_tensorflow() -> None:
    """Imports TensorFlow and Keras, if the program has not done so already."""
    if "tensorflow" in sys.modules:
        return
    for_galleries = _imported_when_used("matplotlib", "pyplot", "patches")
    with noise.silenced(), _no_garbage_collected(), for_galleries:
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def _imported_when_used(package: str, *modules: str) -> Iterator[None]:
    """Within this context, an import of these modules takes no time: their first use does.

    Keras imports Matplotlib where it is installed, for galleries of images that few programs draw.
    """
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is None:  # imported already, or not installed
        yield
        return
    stand_ins = {package: _StandIn(package)}
    stand_ins[package].__path__ = spec.submodule_search_locations
    for module in modules:
        name = f"{package}.{module}"
        stand_ins[name] = _StandIn(name)
        setattr(stand_ins[package], module, stand_ins[name])
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        _StandIn.remove_all()


class _StandIn(types.ModuleType):
    """Stands for a module that is imported when something of it is used for the first time."""

    def __getattr__(self, name):
        if name == "__file__":  # `inspect` asks every module for it, and some have none
            raise AttributeError(name)
        self.remove_all()  # or the import would find them
        return getattr(importlib.import_module(self.__name__), name)

    @staticmethod
    def remove_all() -> None:
        """Makes the next import of these modules a real one."""
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandIn):
                del sys.modules[name]


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Within this context, Python collects no garbage; what is left then counts as old.

    The import makes 330,000 objects that stay, and the more there are, the longer the collector
    takes to look for garbage among them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else a program has frozen objects, and they stay frozen
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, without a look at them
        if was_on:
            gc.enable()
