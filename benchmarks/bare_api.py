"""The least an HTTPS API on the same server can be: one ASGI function with a fixed answer. `--port --certificate`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_ANSWER = b'{"data":{"id":"agt_1","text":"' + b"x" * 900 + b'"}}'


async def app(
    scope: dict[str, Any], _receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    if scope["type"] == "http":
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(_ANSWER)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": _ANSWER})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", required=True)
    given = parser.parse_args()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=given.port,
        ssl_certfile=given.certificate,
        log_level="critical",
        access_log=False,
        lifespan="off",
        loop="uvloop",
        http="h11",
    )
