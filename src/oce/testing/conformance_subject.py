"""What a conformance suite needs of a Driver under test: the subject with its hooks, the cases, and the pinned rules.

The suites themselves are `sandbox_conformance`; the table they print is `conformance_table`'s.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pytest

from oce.contracts.drivers import SandboxAbilities, abilities_of
from oce.contracts.refusals import StillPending
from oce.contracts.sandbox import CleanupContext, HarnessContext, RevisionContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oce.contracts.sandbox import HarnessStatusContext, NamespaceContext, SandboxDriver

_T = TypeVar("_T")
_F = TypeVar("_F", bound="Callable[..., object]")
PATIENCE: Final = 20.0
"""Seconds that a test waits for what a provider does in its own time."""
RULES: Final = {
    "SBX-1": "cf4eaa9bb5d7",
    "SBX-2": "279d025fbf12",
    "SBX-3": "846ce40597ef",
    "SBX-4": "70e99f97469a",
    "SBX-5": "cce0abf59dc9",
    "SBX-6": "d99299375a44",
    "SBX-7": "67d8093ecc97",
    "SBX-8": "88eaba60096d",
    "SBX-9": "2abc8545baaf",
    "SBX-10": "0944744f198d",
    "SBX-11": "82d42f5680dd",
    "SBX-12": "a7b9cb03a166",
    "SBX-13": "f992a0239fa4",
    "SBX-14": "2fd3b0386a37",
    "SBX-15": "8eff952be237",
    "SBX-16": "9088528def2d",
    "SBX-17": "fa143ba3a918",
    "SBX-18": "b8b2d5997870",
    "SBX-19": "1eb96cd4eb0d",
    "SBX-20": "ef1f1374edc8",
    "SBX-21": "4d3a7e4e442c",
    "SBX-22": "1392aeaef922",
    "SBX-23": "15ded94789cf",
    "SBX-24": "3de6c9f2709c",
    "SBX-25": "d820b06e90e3",
    "SBX-26": "b767c7d98279",
}
"""Rule id to the first 12 hex of SHA-256 over `text|level` of docs/contracts/sandbox.md: a rule changes together with its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A Driver under test with the contexts of one revision whose Namespace and credential sources exist already.

    `restart` returns a Driver that remembers nothing. Hooks: `objects` lists what the provider holds of this Namespace below its
    Workspace, credential sources aside; `transcript` returns every request so far that may not hold `secrets`; `tamper` changes the
    provisioned object behind the Driver's back; `native` is a revision with an exposure to withdraw (`enrolled` the same after its node
    enrolled); `files` is one with staged initial workspace files; `conceal` hides everything from the control plane's identity; `slow_deletions` makes
    deletions asynchronous; `hostile_text` makes the next create fail with that text; `inside` runs a shell line in the provisioned Sandbox
    as its Harness's user and returns the exit code.
    """

    driver: SandboxDriver
    restart: Callable[[], SandboxDriver]
    namespace: NamespaceContext
    harness: HarnessContext
    status: HarnessStatusContext
    secrets: tuple[str, ...] = ()
    native: HarnessContext | None = None
    enrolled: HarnessContext | None = None
    files: HarnessContext | None = None
    objects: Callable[[], Awaitable[Sequence[str]]] | None = None
    transcript: Callable[[], Sequence[str]] | None = None
    tamper: Callable[[], None] | None = None
    conceal: Callable[[], None] | None = None
    slow_deletions: Callable[[], None] | None = None
    hostile_text: Callable[[str], None] | None = None
    inside: Callable[[str], Awaitable[int]] | None = None

    @property
    def abilities(self) -> SandboxAbilities:
        """What the Driver can do."""
        return abilities_of(self.driver)

    @property
    def revision(self) -> RevisionContext:
        """The revision without requirements."""
        return RevisionContext(
            namespace=self.harness.namespace,
            objects=self.harness.objects,
            revision=self.harness.revision,
        )

    @property
    def removal(self) -> CleanupContext:
        """The cleanup of the revision."""
        return CleanupContext(
            namespace=self.harness.namespace,
            objects=self.harness.objects,
            revision=self.harness.revision,
        )

    def with_requirements(self, **changes: object) -> HarnessContext:
        """Return the Harness context with changed requirements."""
        changed = dataclasses.replace(self.harness.requirements, **changes)  # type: ignore[arg-type] # fields by name
        return dataclasses.replace(self.harness, requirements=changed)


@dataclass(frozen=True, slots=True)
class Case:
    """Which member a test is about, and what is done to it."""

    member: str
    case: str


def case(member: str, what: str) -> Callable[[_F], _F]:
    """Mark a test of the suite; `conformance_table` prints members by cases."""

    def mark(function: _F) -> _F:
        function.conformance = Case(member, what)  # type: ignore[attr-defined] # read back by name
        return function

    return mark


def needs(ability: _T | None, what: str) -> _T:
    """Return an ability or hook, or skip the test by name."""
    if ability is None:
        pytest.skip(f"this subject has no {what}")
    return ability


async def removed(subject: Subject, driver: SandboxDriver | None = None) -> None:
    """Clean the revision up, as often as the worker would while the provider is not finished."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await (driver or subject.driver).cleanup(subject.removal)
            except StillPending:
                await asyncio.sleep(0.01)
            else:
                return
