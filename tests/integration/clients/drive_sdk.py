"""The official SDK's documented flow; prints what it saw as one JSON object. Runs in the client's own environment."""

import base64
import importlib.metadata
import json
import os
import pathlib

import cloudpickle
import grpc
import openshell
from openshell import GatewayError, Sandbox, SandboxClient, WorkspaceClient
from openshell._proto import openshell_pb2 as pb

SPACE = "default"
PYTHON = "$(command -v python3 || ls /opt/oce/python/bin/python3)"


def lifecycle(client):
    made = client.create(workspace=SPACE, name="sdk", labels={"made-by": "sdk"})
    ready = client.wait_ready(made.name, workspace=SPACE, timeout_seconds=30)
    session = client.get_session(made.name, workspace=SPACE)
    ran = session.exec(
        ["sh", "-c", 'cat; pwd; echo "$MARK"; echo bad >&2; exit 7'],
        stdin=b"given\n",
        env={"MARK": "two\nlines"},
        workdir="/tmp",
    )
    chunks = list(
        client.exec_stream("sdk", ["printf", "abc"], workspace=SPACE, no_login_shell=True)
    )
    late = session.exec(["sleep", "60"], timeout_seconds=1)
    listed = client.list_all(workspace=SPACE, label_selector="made-by=sdk")
    return {
        "same": {made.id, ready.id, session.id, *(item.id for item in listed)} == {made.id},
        "exec": [ran.exit_code, ran.stdout, ran.stderr],
        "stream": [chunks[0].data.decode(), chunks[-1].exit_code],
        "timeout": late.exit_code,
        "everywhere": [item.name for item in client.list_all_for_all_workspaces(page_size=1)],
    }


def files(client):
    session = client.get_session("sdk", workspace=SPACE)
    payload = os.urandom(300_000)
    session.exec(["sh", "-c", "mkdir -p data && cat > data/blob"], stdin=payload)
    back = session.exec(["base64", "-w0", "data/blob"])
    return base64.b64decode(back.stdout) == payload


def python_function(client):
    """`exec_python` runs `python` and wants cloudpickle inside: an image has them, here they are brought along."""
    session = client.get_session("sdk", workspace=SPACE)
    session.exec(
        [
            "sh",
            "-c",
            f"mkdir -p bin lib/cloudpickle && ln -s {PYTHON} bin/python && echo 'PATH=/sandbox/bin:$PATH' > .profile",
        ]
    )
    for source in pathlib.Path(cloudpickle.__file__).parent.glob("*.py"):
        session.exec(
            ["sh", "-c", f"cat > lib/cloudpickle/{source.name}"], stdin=source.read_bytes()
        )
    result = session.exec_python(
        lambda one, two: one + two, args=(40, 2), env={"PYTHONPATH": "/sandbox/lib"}
    )
    return result.stdout.strip() or result.stderr


def stop_and_start(client):
    client.stop("sdk", workspace=SPACE)
    client.wait_stopped("sdk", workspace=SPACE, timeout_seconds=30)
    client.start("sdk", workspace=SPACE)
    client.wait_ready("sdk", workspace=SPACE, timeout_seconds=30)
    return client.exec("sdk", ["ls", "data"], workspace=SPACE).stdout.strip()


def templates(client):
    known = client.sandbox_templates()
    made = known.create(
        workspace=SPACE,
        name="small",
        labels={"size": "s"},
        environment={"FLAVOUR": "vanilla"},
        cpu="500m",
        memory="256Mi",
    )
    names = [
        item.metadata.name for item in known.list_all(workspace=SPACE, label_selector="size=s")
    ]
    same = known.get("small", workspace=SPACE) == made
    ref = client.create_from_template(workspace=SPACE, workload_template="small", name="from-small")
    client.wait_ready(ref.name, workspace=SPACE, timeout_seconds=30)
    flavour = client.exec(ref.name, ["printenv", "FLAVOUR"], workspace=SPACE).stdout.strip()
    known.delete("small", workspace=SPACE)
    still = client.get(ref.name, workspace=SPACE).created_from_workload_template
    client.delete(ref.name, workspace=SPACE)
    client.wait_deleted(ref.name, workspace=SPACE, timeout_seconds=30)
    return [names, same, flavour, still.name, known.list_all(workspace=SPACE)]


def workspaces(client):
    known = WorkspaceClient.from_sandbox_client(client)
    known.create("team")
    names = [item.name for item in known.list_all()]
    known.delete("team")
    return names


def gone(client):
    deleted = client.delete("sdk", workspace=SPACE)
    client.wait_deleted(
        "sdk", workspace=SPACE, expected_sandbox_id=deleted.sandbox_id, timeout_seconds=30
    )
    try:
        client.get("sdk", workspace=SPACE)
    except GatewayError as error:
        return error.code() is grpc.StatusCode.NOT_FOUND
    return False


def context_manager():
    with Sandbox(workspace=SPACE, delete_on_exit=True) as sandbox:
        return sandbox.exec(["echo", "hello"]).stdout.strip()


def not_implemented(client):
    stub = client._stub
    try:
        stub.BeginRootfsTarStaging(pb.BeginRootfsTarStagingRequest())
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return []


def main():
    facts = {
        "installed": importlib.metadata.version("openshell"),
        "imported": openshell.__version__,
    }
    with SandboxClient.from_active_cluster() as client:
        facts["gateway"] = client.health().version
        for step in (
            lifecycle,
            files,
            python_function,
            stop_and_start,
            templates,
            workspaces,
            gone,
        ):
            facts[step.__name__] = step(client)
        facts["context_manager"] = context_manager()
        facts["not_implemented"] = not_implemented(client)
        facts["left"] = client.list_ids(workspace=SPACE)
    print(json.dumps(facts))  # noqa: T201 - the test reads it


main()
