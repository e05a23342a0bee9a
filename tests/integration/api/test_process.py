"""The API as a process: settings, TLS, signals and the ways it refuses to start."""

import asyncio
import os
import signal
import ssl
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pytest
import yaml

from oce.core.installation.commands import bootstrap
from oce.dev.pki import ensure_identity
from oce.domain.clock import SystemClock

served = sys.modules["oce_api_served"]
pytestmark = pytest.mark.postgres


def startup(root):
    """Return a startup YAML; composing it opens no connection."""
    document = {
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
                    "keyPath": str(root / "keys" / "secrets.key"),
                },
            },
            "compute": {
                "id": "compute-local",
                "implementation": "local",
                "configuration": {
                    "agentsDirectory": str(root / "agents"),
                    "routesDirectory": str(root / "routes"),
                    "gatewayControlSocket": str(root / "agentgw.sock"),
                    "harnessCommand": ["/opt/oce/python/bin/python3", "-I", "harness"],
                    "codexBinary": "/opt/oce/codex/bin/codex",
                },
            },
            "sandbox": {
                "id": "sandbox-local",
                "implementation": "openshell",
                "configuration": {"local": {"mountSource": "agents"}},
            },
            "credential_gateway": {
                "id": "credentials-local",
                "implementation": "openshell",
                "configuration": {"binaries": ["/opt/oce/codex/bin/codex"]},
            },
        },
        "backend": [
            {
                "id": "sandboxd",
                "type": "openshell",
                "configuration": {
                    "endpoint": "https://127.0.0.1:9",
                    "auth": {"mode": "bearerTokenFile", "path": str(root / "token")},
                    "rootCertificatePath": str(root / "ca.crt"),
                },
                "drivers": {
                    "sandbox": "sandbox-local",
                    "credential_gateway": "credentials-local",
                },
            }
        ],
    }
    (root / "token").write_text("x" * 40)
    (root / "installation.yaml").write_text(yaml.safe_dump(document))
    return root / "installation.yaml"


@pytest.fixture
def environment(tmp_path, test_database):
    identity = ensure_identity(tmp_path, "local", ("localhost",), datetime.now(UTC))
    (tmp_path / "internal.token").write_text("t" * 40)
    port = 20_000 + os.getpid() % 20_000
    return {
        "OCC_CONFIG_PATH": str(startup(tmp_path)),
        "OCC_DATABASE_URL": test_database.app_url,
        "OCC_PORT": str(port),
        "OCC_TLS_CERTIFICATE": str(identity.certificate),
        "OCC_TLS_KEY": str(identity.key),
        "OCC_PRIVATE_PORT": str(port + 1),
        "OCC_INTERNAL_TOKEN_FILE": str(tmp_path / "internal.token"),
    }


def status(url, authority=None):
    context = ssl.create_default_context(cafile=authority) if authority else None
    try:
        with urllib.request.urlopen(url, context=context, timeout=5) as answer:  # noqa: S310 # our own loopback
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


async def test_it_serves_over_tls_and_leaves_on_a_signal(db, environment, tmp_path):
    await bootstrap(db, SystemClock(), name="test")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "oce.api"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        private = f"http://127.0.0.1:{environment['OCC_PRIVATE_PORT']}/readyz"

        async def serving():
            assert process.returncode is None, (await process.stdout.read()).decode()
            return await asyncio.to_thread(status, private) == 200

        await served.eventually(serving, 20)
        public = f"https://localhost:{environment['OCC_PORT']}/namespaces"
        authority = str(tmp_path / "ca.crt")
        assert await asyncio.to_thread(status, public, authority) == 401
        assert await asyncio.to_thread(status, public) is None

        again = await served.program("oce.api.main", environment=environment)
        assert again[0] == 1
        assert "api.listen-failed" in again[1]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        output = (await process.stdout.read()).decode()
    assert '"event":"http.completed"' in output.replace(": ", ":")
    assert "Traceback" not in output


async def test_a_wrong_startup_file_is_named_by_key(environment, tmp_path):
    (tmp_path / "installation.yaml").write_text("drivers: {}\nsecret_door: open-sesame\n")
    code, _, err = await served.program("oce.api.main", environment=environment)
    assert code == 2
    assert "secret_door" in err
    assert "open-sesame" not in err
