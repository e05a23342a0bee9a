"""What a SandboxDriver declares is judged once, at startup (mission document 003)."""

from __future__ import annotations

import pytest

from oce.contracts.drivers import DEFAULT_HARNESS_HOME, abilities_of
from oce.contracts.sandbox import Facet


class Driver:
    id = "box"
    implementation = "test"
    facets = (Facet.PROCESS,)

    async def cleanup(self, context):
        pass


def declaring(**members):
    return type("Declaring", (Driver,), members)()


@pytest.mark.parametrize(
    "facets",
    [(), ("networking", "networking"), ("exec",), ("networking", "exec"), (None,)],
    ids=["empty", "repeated", "unknown", "one unknown", "none"],
)
def test_facets_that_say_nothing_or_something_else_fail_the_start(facets):
    with pytest.raises(ValueError, match="networking, filesystem, process, each once"):
        abilities_of(declaring(facets=facets))


@pytest.mark.parametrize("facets", [["process"], tuple(Facet)])
def test_a_driver_without_optional_members_has_no_ability(facets):
    found = abilities_of(declaring(facets=facets))
    assert found.harness_home == DEFAULT_HARNESS_HOME
    optional = set(found.__slots__) - {"driver", "harness_home"}
    assert [name for name in optional if getattr(found, name) is not None] == []


@pytest.mark.parametrize("home", ["", "home/node", "/home/../node", "/home//node", "/home/node/"])
def test_a_home_that_is_no_normalized_path_fails_the_start(home):
    with pytest.raises(ValueError, match="harness_home"):
        abilities_of(declaring(harness_home=home))
