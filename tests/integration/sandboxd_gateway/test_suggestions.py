"""Suggestions from denials: counted, shown with what they would change, approved only against the policy that was shown."""

from __future__ import annotations

import time

import grpc
from openshell._proto import openshell_pb2 as pb

from oce.sandboxd.egress.model import Decision

CURL = "/usr/bin/curl"


async def deny(world, sandbox_id, host="docs.example.com", **changes):
    fields = {
        "sandbox_id": sandbox_id,
        "time": time.time(),
        "allowed": False,
        "activity": "NET:OPEN",
        "host": host,
        "port": 443,
        "binary": CURL,
        "pid": 7,
        "rule": "-",
        "reason": "no rule names it",
        **changes,
    }
    await world.egress.events.put(Decision(**fields))


async def read(control, tools, status=""):
    return await control.GetDraftPolicy(
        pb.GetDraftPolicyRequest(**tools.in_default(sandbox="one", status_filter=status))
    )


async def pending(control, tools, count):
    async def enough():
        found = await read(control, tools, "pending")
        return found if len(found.chunks) == count else None

    return await tools.eventually(enough)


async def made(control, tools):
    await tools.create(control)
    return (await tools.ready(control, "one")).sandbox.metadata.id


async def test_denials_become_one_suggestion_each_and_what_no_rule_lifts_becomes_none(
    world, control, tools
):
    sandbox_id = await made(control, tools)
    await deny(world, sandbox_id, allowed=True)
    await deny(world, sandbox_id, activity="HTTP:GET")
    await deny(world, sandbox_id, activity="DNS:QUERY", binary="-", port=53)
    await deny(world, sandbox_id, binary="-")
    await deny(world, sandbox_id, engine="ssrf", host="10.0.0.1")
    for _ in range(3):
        await deny(world, sandbox_id)
    await deny(world, sandbox_id, host="10.0.0.1", port=5432)

    async def counted():
        found = await pending(control, tools, 2)
        return found if found.chunks[0].hit_count == 3 else None

    found = await tools.eventually(counted)
    first, second = found.chunks
    assert first.rule_name == "allow_docs_example_com_443"
    assert [item.host for item in first.proposed_rule.endpoints] == ["docs.example.com"]
    assert [item.path for item in first.proposed_rule.binaries] == [CURL]
    assert (round(first.confidence, 2), round(second.confidence, 2)) == (0.75, 0.3)
    assert second.security_notes
    assert not first.security_notes
    assert found.rolling_summary == "2 pending, from 4 denied connections"
    async with tools.refused(grpc.StatusCode.INVALID_ARGUMENT, "status_filter"):
        await read(control, tools, "maybe")


async def test_an_approval_needs_the_token_of_this_policy_and_takes_effect(world, control, tools):
    sandbox_id = await made(control, tools)
    await deny(world, sandbox_id)
    await deny(world, sandbox_id, host="other.example.com")
    first, second = (await pending(control, tools, 2)).chunks
    approve = {"sandbox": "one", "chunk_id": first.id}
    async with tools.refused(grpc.StatusCode.FAILED_PRECONDITION, "read it again"):
        await control.ApproveDraftChunk(
            pb.ApproveDraftChunkRequest(**tools.in_default(**approve, review_token="old"))
        )
    request = pb.ApproveDraftChunkRequest(
        **tools.in_default(**approve, review_token=first.review_token, request_id=tools.new_id())
    )
    answer = await control.ApproveDraftChunk(request)
    assert answer.policy_version == 2
    assert answer.policy_hash == first.candidate_effective_policy_hash
    assert await control.ApproveDraftChunk(request) == answer

    async def in_force():
        network = world.egress.served[sandbox_id].policy
        return [rule.key for rule in network.rules] == ["allow_docs_example_com_443"]

    await tools.eventually(in_force)
    left = await pending(control, tools, 1)
    assert left.chunks[0].id == second.id
    async with tools.refused(grpc.StatusCode.FAILED_PRECONDITION):
        await control.ApproveDraftChunk(
            pb.ApproveDraftChunkRequest(
                **tools.in_default(
                    sandbox="one", chunk_id=second.id, review_token=second.review_token
                )
            )
        )
    await world.reopen()
    assert [item.id for item in (await read(control, tools, "approved")).chunks] == [first.id]


async def test_a_rejected_suggestion_does_not_come_back_and_cleared_ones_are_forgotten(
    world, control, tools
):
    sandbox_id = await made(control, tools)
    await deny(world, sandbox_id)
    await deny(world, sandbox_id, host="other.example.com")
    first, _second = (await pending(control, tools, 2)).chunks
    await control.RejectDraftChunk(
        pb.RejectDraftChunkRequest(
            **tools.in_default(sandbox="one", chunk_id=first.id, reason="not for agents")
        )
    )
    await deny(world, sandbox_id)
    (rejected,) = (await read(control, tools, "rejected")).chunks
    assert (rejected.id, rejected.rejection_reason) == (first.id, "not for agents")
    await pending(control, tools, 1)
    cleared = await control.ClearDraftChunks(
        pb.ClearDraftChunksRequest(**tools.in_default(sandbox="one"))
    )
    assert cleared.chunks_cleared == 1
    assert [item.status for item in (await read(control, tools)).chunks] == ["rejected"]
    async with tools.refused(grpc.StatusCode.NOT_FOUND, "pending draft chunk"):
        await control.RejectDraftChunk(
            pb.RejectDraftChunkRequest(**tools.in_default(sandbox="one", chunk_id="chunk-none"))
        )


async def test_an_approval_gives_a_program_nothing_but_the_place_it_was_denied(
    world, control, tools
):
    """`a-b` and `a.b` share a rule name; one rule for both would open each place to both programs."""
    sandbox_id = await made(control, tools)
    await deny(world, sandbox_id, host="a-b.example.com")
    await deny(world, sandbox_id, host="a.b.example.com", binary="/usr/bin/git")
    await deny(world, sandbox_id, host="a-b.example.com", binary="/usr/bin/git", port=443)
    await pending(control, tools, 3)
    for _ in range(3):
        chunk = (await read(control, tools, "pending")).chunks[0]
        await control.ApproveDraftChunk(
            pb.ApproveDraftChunkRequest(
                **tools.in_default(
                    sandbox="one", chunk_id=chunk.id, review_token=chunk.review_token
                )
            )
        )

    async def opened():
        rules = world.egress.served[sandbox_id].policy.rules
        return {
            (endpoint.host, tuple(sorted(rule.binaries)))
            for rule in rules
            for endpoint in rule.endpoints
        } == {
            ("a-b.example.com", (CURL, "/usr/bin/git")),
            ("a.b.example.com", ("/usr/bin/git",)),
        }

    await tools.eventually(opened)
