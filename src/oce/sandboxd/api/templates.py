"""Workload templates: named, immutable answers to "what does a Sandbox start from" (reference/openshell-gateway.md a.9).

A template carries an image, environment, bounds and driver settings; `CreateSandbox.workload_template` copies them into the new
Sandbox and records which template and version they came from. Deleting a template changes no Sandbox. Warm pools (a template's
`desired_service_level`) are not kept here, so asking for one is refused.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from oce.sandboxd.api import checks
from oce.sandboxd.api.calls import Query
from oce.sandboxd.api.objects import listed, show, stamp
from oce.sandboxd.api.stubs import Proto, pb, unknown_field
from oce.sandboxd.lifecycle.rendering import host_folder, local_settings
from oce.sandboxd.state.refusals import Refusal, Status, invalid, missing
from oce.sandboxd.state.store import Kind, Record

if TYPE_CHECKING:
    from oce.sandboxd.api.calls import Call, Method
    from oce.sandboxd.api.gateway import Gateway
    from oce.sandboxd.state.store import Reader, Transaction

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def wanted_sandbox(reader: Reader, call: Call) -> Proto:
    """Return the Sandbox that a create asks for, with its workload template copied in. Raises Refusal."""
    request = call.request
    message = pb.Sandbox(spec=request.spec)
    if not request.workload_template:
        return message
    record = reader.named(Kind.TEMPLATE, call.workspace, request.workload_template)
    if record is None:
        raise missing("sandbox template", request.workload_template)
    if message.spec.HasField("template"):
        raise invalid("spec.template", "cannot be combined with workload_template")
    template = pb.SandboxWorkloadTemplate.FromString(record.payload)
    message.spec.template.CopyFrom(_sandbox_template(template.spec))
    message.created_from_workload_template.name = record.name
    message.created_from_workload_template.resource_version = str(record.version)
    return message


def _sandbox_template(spec: Proto) -> Proto:
    """Return the inline form of a template. Pure."""
    workload = spec.workload
    result = pb.SandboxTemplate(image=workload.image, environment=workload.environment)
    limits = {
        key: value
        for key, value in (("cpu", workload.resources.cpu), ("memory", workload.resources.memory))
        if value
    }
    if limits:
        result.resources.update({"limits": limits})
    if spec.HasField("driver_config"):
        result.driver_config.CopyFrom(spec.driver_config)
    return result


class Templates:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._g = gateway

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "CreateSandboxTemplate": self._g.mutation(self._create),
            "GetSandboxTemplate": Query(handle=self._get),
            "ListSandboxTemplates": Query(handle=self._list, spans=True),
            "DeleteSandboxTemplate": self._g.mutation(self._delete),
        }

    def _create(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        checks.active_workspace(tx, call.workspace)
        template = call.request.template
        self._check(template)
        name = template.metadata.name
        if tx.named(Kind.TEMPLATE, call.workspace, name) is not None:
            raise Refusal(Status.ALREADY_EXISTS, f"sandbox template '{name}' already exists")
        record = Record(
            kind=Kind.TEMPLATE,
            id=str(uuid.uuid4()),
            workspace=call.workspace,
            name=name,
            created=self._g.clock.now(),
        )
        message = pb.SandboxWorkloadTemplate(spec=template.spec)
        message.metadata.labels.update(template.metadata.labels)
        message.metadata.annotations.update(template.metadata.annotations)
        stamp(message.metadata, record)
        record = replace(record, payload=message.SerializeToString())
        tx.insert(record)
        return pb.SandboxTemplateResponse(template=show(record))

    def _check(self, template: Proto) -> None:
        """Refuse a template whose Sandboxes would be refused. Raises Refusal."""
        found = unknown_field(template, "template")
        if found is not None:
            raise invalid(found, "is not a field this gateway knows")
        if not _NAME.fullmatch(template.metadata.name):
            raise invalid("template.metadata.name", "must be a lowercase DNS name")
        checks.labels(template.metadata.labels, "template.metadata.labels")
        checks.check_annotations(template.metadata.annotations, "template.metadata.annotations")
        spec = template.spec
        if not spec.HasField("workload"):
            raise invalid("template.spec.workload", "is required")
        if spec.HasField("desired_service_level"):
            raise invalid(
                "template.spec.desired_service_level", "warm pools are not kept by this gateway"
            )
        if spec.workload.resources.HasField("gpu"):
            raise invalid(
                "template.spec.workload.resources.gpu", "GPUs are not supported by this gateway"
            )
        checks.environment(spec.workload.environment, "template.spec.workload.environment")
        for mount in local_settings(_sandbox_template(spec)).mounts:
            host_folder(self._g.config, mount)

    async def _get(self, call: Call) -> Proto:
        return pb.SandboxTemplateResponse(template=show(self._find(self._g.store.read, call)))

    def _find(self, reader: Reader, call: Call) -> Record:
        checks.active_workspace(reader, call.workspace, writing=False)
        record = reader.named(Kind.TEMPLATE, call.workspace, call.request.name)
        if record is None:
            raise missing("sandbox template", call.request.name)
        return record

    async def _list(self, call: Call) -> Proto:
        shown, token = listed(self._g.store.read, call, Kind.TEMPLATE)
        return pb.ListSandboxTemplatesResponse(templates=shown, next_page_token=token)

    def _delete(self, tx: Transaction, call: Call, _prepared: object) -> Proto:
        checks.active_workspace(tx, call.workspace, writing=False)
        record = tx.named(Kind.TEMPLATE, call.workspace, call.request.name)
        if record is None:
            if call.request.allow_missing:
                return pb.DeleteSandboxTemplateResponse(outcome=pb.DELETION_OUTCOME_ALREADY_ABSENT)
            raise missing("sandbox template", call.request.name)
        tx.delete(record)
        return pb.DeleteSandboxTemplateResponse(outcome=pb.DELETION_OUTCOME_COMPLETED)
