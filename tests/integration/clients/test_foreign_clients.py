"""Clients that nobody here wrote, in environments of their own, through their documented flows against a real sandboxd."""

from __future__ import annotations

from pathlib import Path

import pytest

from oce.contracts.refusals import RevisionUnsupported
from oce.testing.openshell_bench import Bench
from oce.testing.openshell_machine import harness_contexts

# A first run downloads some hundred megabytes; later runs find the environments under `.cache/clients`.
pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", ["0.1.3", "0.1.5"])
def test_the_official_sdk(installed, served, version):
    facts = installed(f"openshell-{version}").drive("drive_sdk.py", served.home)
    assert facts == {
        "installed": version,
        "imported": version,
        "gateway": "0.1.5",
        "lifecycle": {
            "same": True,
            "exec": [7, "given\n/tmp\ntwo\nlines\n", "bad\n"],
            "stream": ["abc", 0],
            "timeout": 124,
            "everywhere": ["sdk"],
        },
        "files": True,
        "python_function": "42",
        "stop_and_start": "blob",
        "templates": [["small"], True, "vanilla", "small", []],
        "workspaces": ["default", "team"],
        "gone": True,
        "context_manager": "hello",
        "not_implemented": [
            "UNIMPLEMENTED",
            "BeginRootfsTarStaging is not implemented by this gateway",
        ],
        "left": [],
    }


def test_langchain_deep_agents(installed, served):
    facts = installed("langchain-nvidia-openshell").drive("drive_langchain.py", served.home)
    assert facts == {
        "version": "0.1.1",
        "ran": "hello from openshell\n",
        "lines": {"output": "/tmp\n", "exit_code": 1, "truncated": False},
        "uploaded": [None, "invalid_path"],
        "same": True,
        "errors": ["file_not_found", "is_directory"],
        "timeout": 124,
        "read": True,
        "ls": True,
        "glob": True,
        "grep": True,
        "agent": ["in:1\n\n[Command succeeded with exit code 0]", "done"],
    }


def test_openenv_insists_on_its_version_and_gets_it(installed, served_as_012):
    client = installed("openenv-openshell")
    server = Path(__file__).with_name("echo_environment.py")
    facts = client.drive(
        "drive_openenv.py",
        served_as_012.home,
        str(server),
        SSL_CERT_FILE=served_as_012.certificate,
    )
    url = facts.pop("url")
    assert url.startswith("https://default--openenv-host-")
    assert facts == {
        "version": "0.1.1",
        "sdk": "0.1.2",
        "echo": "hello from OpenShell",
        "steps": 1,
        "healthy": True,
        "deleted": True,
    }


async def test_our_driver_refuses_a_gateway_that_says_0_1_2(served_as_012):
    gateway, box, _ = served_as_012.machine.drivers()
    harness, _ = harness_contexts()
    try:
        await box.ensure_namespace(Bench.__new__(Bench).namespace())
        with pytest.raises(RevisionUnsupported) as caught:
            await box.provision_harness(harness)
        assert caught.value.code == "SANDBOX_GATEWAY_TOO_OLD"
    finally:
        await gateway.close()
