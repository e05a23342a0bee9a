"""Gone only on proof.

The gateway conceals what an identity may not see as "not found", so a missed read proves nothing. An object is absent when the
Workspace answers the control question (`GetWorkspace`) for this very identity and a second read still misses it (mission documents
000 and 003). A refused or unanswered control question is a refusal, never an absence; a Workspace that somebody removed looks the
same and gets the same answer, because nobody can tell them apart from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from oce.contracts.refusals import GatewayUnauthorized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oce.drivers.openshell.wire import Gateway

_T = TypeVar("_T")


async def prove_absent(
    gateway: Gateway, workspace: str, read: Callable[[], Awaitable[_T | None]]
) -> _T | None:
    """Return None when the absence is proved, or the object when the second read shows it after all.

    Call it after a first read that missed. Raises GatewayUnauthorized, GatewayFailure.
    """
    if await gateway.get_workspace(workspace) is None:
        raise GatewayUnauthorized(transient=False)
    return await read()


async def read_proved(
    gateway: Gateway, workspace: str, read: Callable[[], Awaitable[_T | None]]
) -> _T | None:
    """Read; None only when the absence is proved."""
    found = await read()
    return found if found is not None else await prove_absent(gateway, workspace, read)
