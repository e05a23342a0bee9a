"""Load the generated `openshell` stubs, and nothing else of that wheel, for `wire` alone.

The wheel's top package imports its whole client, with an HTTP and a terminal library, for which the control plane has no use: a fifth of the
start-up time and of the memory of API and worker. So while the stubs are imported an empty package of the same name and place stands for it;
afterwards the real one can be imported as ever and finds these very modules.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("openshell_pb2", "openshell_pb2_grpc", "sandbox_pb2")


@contextmanager
def _empty_package(name: str) -> Iterator[None]:
    """Let submodules of a package be imported without running its `__init__`; one that is loaded stays as it is."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None:
        yield
        return
    package = ModuleType(name)
    package.__path__ = spec.submodule_search_locations or []
    sys.modules[name] = package
    try:
        yield
    finally:
        del sys.modules[name]


with _empty_package("openshell"):
    from openshell._proto import openshell_pb2, openshell_pb2_grpc, sandbox_pb2
