"""The real process: composed from a startup YAML, started, ready, stopped by a signal."""

import asyncio
import os
import signal
import sys
import time

import pytest
import yaml

from oce.core.installation.commands import bootstrap
from oce.domain.clock import SystemClock

pytestmark = pytest.mark.postgres


def startup_document(root):
    return {
        "drivers": {
            "configuration": {
                "id": "configuration-local",
                "implementation": "local",
                "configuration": {"directory": str(root / "configurations")},
            },
            "iam": {"id": "iam-native", "implementation": "native", "configuration": {}},
            "secret": {
                "id": "secret-local",
                "implementation": "local",
                "configuration": {
                    "directory": str(root / "secrets"),
                    "keyPath": str(root / "secrets.key"),
                },
            },
            "compute": {
                "id": "compute-local",
                "implementation": "local",
                "configuration": {
                    "agentsDirectory": str(root / "agents"),
                    "routesDirectory": str(root / "routes"),
                    "gatewayControlSocket": str(root / "agentgw.sock"),
                    "harnessCommand": ["/opt/oce/python/bin/python3", "harness"],
                },
            },
            "sandbox": {
                "id": "sandbox-openshell",
                "implementation": "openshell",
                "configuration": {"local": {"mountSource": "agents"}},
            },
            "credential_gateway": {
                "id": "credentials-openshell",
                "implementation": "openshell",
                "configuration": {"binaries": ["/opt/oce/codex/bin/codex"]},
            },
        },
        "backend": [
            {
                "id": "sandboxd",
                "type": "openshell",
                "configuration": {
                    # Port 1 on loopback: nothing answers there, so the provider is a dependency that is away.
                    "endpoint": "https://127.0.0.1:1",
                    "auth": {"mode": "bearerTokenFile", "path": str(root / "token")},
                    "rootCertificatePath": str(root / "ca.crt"),
                },
                "drivers": {
                    "sandbox": "sandbox-openshell",
                    "credential_gateway": "credentials-openshell",
                },
            }
        ],
    }


async def start(test_database, root, **environment):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "oce.worker.main",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OCC_DATABASE_URL": test_database.app_url,
            "OCC_CONFIG_PATH": str(root / "occ.yaml"),
            "OCC_WORKER_READINESS_PATH": str(root / "ready"),
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_process_becomes_ready_works_and_leaves_on_a_signal(db, test_database, tmp_path):
    (tmp_path / "occ.yaml").write_text(yaml.safe_dump(startup_document(tmp_path)))
    (tmp_path / "token").write_text("t" * 40)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "ca.crt").write_text("")
    await bootstrap(db, SystemClock(), name="test")
    process = await start(test_database, tmp_path)
    try:
        deadline = time.monotonic() + 30
        attempts = 0
        while not attempts or not (tmp_path / "ready").exists():
            assert process.returncode is None
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
            async with db.read() as reader:
                row = await reader.one(
                    "SELECT count(*) AS n FROM occ.audit_events WHERE action = 'reconcile'"
                )
            attempts = row["n"]
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err) == (0, b"")
    assert b'"event": "worker.started"' in out
    assert b'"event": "worker.stopped"' in out
    assert not (tmp_path / "ready").exists()
    async with db.read() as reader:
        row = await reader.one("SELECT state FROM occ.controller_work")
    assert row["state"] == "queued"


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"OCC_WORKER_LANES": "0"}, b"OCC_WORKER_LANES"),
        ({"OCC_CONFIG_PATH": "/nonexistent/occ.yaml"}, b"cannot be read"),
    ],
)
async def test_a_refused_start_is_one_sentence(test_database, tmp_path, environment, sentence):
    process = await start(test_database, tmp_path, **environment)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert sentence in err
    assert err.count(b"\n") == 1
