"""Clients of a scripted gateway whose process dies, or whose identity loses its role, around one call; or any call, in bad weather.

The first two make crash tables from the calls that a member really makes: run it once to count them, then once for each number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from oce.drivers.openshell.failures import Category, GatewayFailure
from oce.drivers.openshell.wire import Gateway
from oce.testing.openshell_bench import a_backend

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from random import Random

    from oce.testing.scripted_gateway import ScriptedGateway


class Died(BaseException):
    """The process is gone: nothing may catch this."""


class _CountingGateway(Gateway, ABC):
    """Knows which call it is at."""

    def __init__(self, scripted: ScriptedGateway, at: int) -> None:
        super().__init__(a_backend(scripted.port))
        self.scripted, self.at, self.count = scripted, at, 0

    async def call(self, method: str, message: Any) -> Any:  # noqa: ANN401 # generated messages
        """Make a unary call."""
        return await self._around(super().call(method, message))

    async def stream(self, method: str, message: Any, timeout: float) -> Any:  # noqa: ANN401, ASYNC109 # the parent's signature
        """Make a streaming call."""
        return await self._around(super().stream(method, message, timeout))

    @abstractmethod
    async def _around(self, answer: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 # as above
        """Let the call happen, or not."""


class DyingGateway(_CountingGateway):
    """A client whose process dies before call number `at`, or after its effect."""

    def __init__(self, scripted: ScriptedGateway, at: int, *, after: bool) -> None:
        super().__init__(scripted, at)
        self.after = after

    async def _around(self, answer: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 # as above
        self.count += 1
        if self.count == self.at and not self.after:
            answer.close()
            raise Died
        try:
            return await answer
        finally:
            if self.count == self.at:
                raise Died


class HidingGateway(_CountingGateway):
    """A client whose identity loses its role just before call number `at`: from then on everything is hidden from it."""

    async def _around(self, answer: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 # as above
        self.count += 1
        self.scripted.concealed = self.count >= self.at
        return await answer


class StormyGateway(_CountingGateway):
    """A client in bad weather: each call may die before or after its effect, never arrive or lose its answer, as a seed says."""

    def __init__(self, scripted: ScriptedGateway, chance: Random, odds: float) -> None:
        super().__init__(scripted, at=0)
        self.chance, self.odds = chance, odds

    async def _around(self, answer: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 # as above
        self.count += 1
        if self.chance.random() >= self.odds:
            return await answer
        arrives, dies = self.chance.random() < 0.5, self.chance.random() < 0.5  # noqa: PLR2004 - a coin
        if arrives:
            await answer
        else:
            answer.close()
        if dies:
            raise Died
        raise GatewayFailure(f"call {self.count}", "UNAVAILABLE", Category.UNAVAILABLE)
