"""Requests made from the OpenAPI document against the real application: nothing crashes, every answer is one the document names."""

import asyncio
import sys

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

served = sys.modules["oce_api_served"]
pytestmark = pytest.mark.postgres

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = {GenerationMode.POSITIVE: 6, GenerationMode.NEGATIVE: 2}


def operations(app):
    """Yield the operations that a generated request can be sent to."""
    schema = schemathesis.openapi.from_dict(app.openapi())
    for found in schema.get_all_operations():
        operation = found.ok()
        if "withdraw" not in operation.path:
            yield operation


def hammer(app, origin, key, mode):
    """Send generated requests to every operation and return how many there were."""
    sent = 0
    for operation in operations(app):

        @settings(
            max_examples=EXAMPLES[mode],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def try_one(case):
            nonlocal sent
            sent += 1
            case.call_and_validate(
                base_url=origin, headers={"x-api-key": key}, checks=CHECKS, timeout=10
            )

        try_one()
    return sent


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
async def test_generated_requests_get_documented_answers(world, ready, mode):
    async with served.listening(world.app) as origin:
        sent = await asyncio.to_thread(hammer, world.app, origin, world.key, mode)
    assert sent >= 80


def test_the_document_is_31_and_tells_the_service_key_and_our_error(world):
    document = world.app.openapi()
    assert document["openapi"] == "3.1.0"
    assert document["components"]["securitySchemes"]["serviceKey"]["name"] == "x-api-key"
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            for status in ("400", "401", "403", "404", "500", "503"):
                body = operation["responses"][status]["content"]["application/json"]["schema"]
                assert body == {"$ref": "#/components/schemas/ErrorEnvelope"}, (method, path)
            assert "422" not in operation["responses"]
