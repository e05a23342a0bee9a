"""Workload templates: immutable, copied into a Sandbox at its creation, refused where its Sandboxes would be."""

from __future__ import annotations

import grpc
import pytest
from openshell._proto import openshell_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def template(name="small", **workload):
    made = pb.SandboxWorkloadTemplate(metadata={"name": name, "labels": {"size": "s"}})
    made.spec.workload.CopyFrom(pb.SandboxWorkloadConfig(**workload))
    return made


async def create(control, tools, made, **fields):
    return await control.CreateSandboxTemplate(
        pb.CreateSandboxTemplateRequest(**tools.in_default(template=made, **fields))
    )


async def test_a_template_is_copied_with_its_bounds_and_named_as_the_origin(world, control, tools):
    made = template(environment={"A": "t", "B": "t"}, resources={"cpu": "500m", "memory": "1Gi"})
    made.spec.driver_config.update({"local": {"limits": {"processes": 64}}})
    version = (await create(control, tools, made)).template.metadata.resource_version
    spec = pb.SandboxSpec(environment={"B": "own"})
    answer = await tools.create(control, spec=spec, workload_template="small")
    assert answer.sandbox.created_from_workload_template == pb.SandboxWorkloadTemplateProvenance(
        name="small", resource_version=str(version)
    )
    await tools.ready(control, "one")
    (launch,) = world.place.started
    assert (launch.environment["A"], launch.environment["B"]) == ("t", "own")
    assert (launch.limits.cpu_fraction, launch.limits.memory_bytes) == (0.5, 1 << 30)
    assert launch.limits.processes == 64

    request = pb.DeleteSandboxTemplateRequest(**tools.in_default(name="small", allow_missing=True))
    assert (await control.DeleteSandboxTemplate(request)).outcome == pb.DELETION_OUTCOME_COMPLETED
    assert (
        await control.DeleteSandboxTemplate(request)
    ).outcome == pb.DELETION_OUTCOME_ALREADY_ABSENT
    assert (await tools.ready(control, "one")).sandbox.created_from_workload_template.name


async def test_a_template_cannot_change_and_a_repeated_request_is_answered_again(control, tools):
    request_id = tools.new_id()
    first = await create(control, tools, template(), request_id=request_id)
    assert await create(control, tools, template(), request_id=request_id) == first
    async with tools.refused(grpc.StatusCode.ALREADY_EXISTS, "small"):
        await create(control, tools, template())
    async with tools.refused(grpc.StatusCode.NOT_FOUND, "sandbox template 'none' not found"):
        await tools.create(control, workload_template="none")
    both = pb.SandboxSpec(template=pb.SandboxTemplate(image="host"))
    async with tools.refused(INVALID, "spec.template"):
        await tools.create(control, spec=both, workload_template="small")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"name": "Bad Name"}, "metadata.name"),
        ({"resources": {"gpu": {"count": 1}}}, "GPUs"),
        ({"resources": {"memory": "1 GB"}}, "not a quantity"),
        ({"resources": {"cpu": "0"}}, "not a quantity"),
        ({"environment": {"OPENSHELL_X": "1"}}, "reserved"),
    ],
)
async def test_a_template_whose_sandboxes_would_be_refused_is_refused(control, tools, change, word):
    async with tools.refused(INVALID, word):
        await create(control, tools, template(**change))


async def test_a_template_without_workload_or_with_a_warm_pool_or_image_is_refused(control, tools):
    bare = pb.SandboxWorkloadTemplate(metadata={"name": "x"})
    async with tools.refused(INVALID, "workload"):
        await create(control, tools, bare)
    warm = template()
    warm.spec.desired_service_level.SetInParent()
    async with tools.refused(INVALID, "warm pools"):
        await create(control, tools, warm)
    async with tools.refused(grpc.StatusCode.FAILED_PRECONDITION, "template.image"):
        await create(control, tools, template(image="ubuntu:24.04"))


@pytest.mark.parametrize(
    ("resources", "word"),
    [
        ({"requests": {"cpu": "1"}}, "only limits"),
        ({"limits": {"disk": "1Gi"}}, "not a limit"),
        ({"limits": {"memory": "1Gi"}}, "also set in driver_config"),
    ],
)
async def test_inline_resources_carry_limits_only_and_only_once(control, tools, resources, word):
    spec = pb.SandboxSpec()
    spec.template.resources.update(resources)
    spec.template.driver_config.update({"local": {"limits": {"memory_bytes": 1 << 20}}})
    async with tools.refused(INVALID, word):
        await tools.create(control, spec=spec)
