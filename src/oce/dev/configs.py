"""The configuration files of one machine, as text: startup YAML, sandboxd, Agent Gateway. Pure.

They are written anew at each `occ up`, so that a change of port or path never leaves a stale file, and they hold no secret: keys and
tokens are named by path.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import yaml

from oce.dev.layout import CODEX_TARGET, HARNESS_TARGET

if TYPE_CHECKING:
    from oce.dev.layout import Programs
    from oce.dev.operator_settings import UpstreamOverride
    from oce.dev.pki import ServerIdentity
    from oce.dev.state import Ports, StateDirectory

SANDBOX_ID: Final = "sandbox-openshell-local"
CREDENTIALS_ID: Final = "credentials-openshell-local"
MOUNT_SOURCE: Final = "agents"


def startup_yaml(state: StateDirectory, ports: Ports, programs: Programs) -> str:
    """Return the trusted startup YAML of a single machine."""
    document = {
        "occ": {"cluster": "single-machine"},
        "drivers": {
            "configuration": {
                "id": "configuration-local",
                "implementation": "local",
                "configuration": {"directory": str(state.configurations)},
            },
            "iam": {"id": "iam-native", "implementation": "native", "configuration": {}},
            "secret": {
                "id": "secret-local",
                "implementation": "local",
                "configuration": {
                    "directory": str(state.secrets),
                    "keyPath": str(state.keys / "secrets.key"),
                },
            },
            "compute": {
                "id": "compute-local",
                "implementation": "local",
                "configuration": {
                    "agentsDirectory": str(state.agents),
                    "routesDirectory": str(state.routes),
                    "gatewayControlSocket": str(state.run / "agentgw.sock"),
                    "harnessCommand": list(programs.harness_command),
                    "codexBinary": f"{CODEX_TARGET}/bin/codex",
                    "codexVersion": programs.codex_version,
                },
            },
            "sandbox": {
                "id": SANDBOX_ID,
                "implementation": "openshell",
                "configuration": {"local": {"mountSource": MOUNT_SOURCE}},
            },
            "credential_gateway": {
                "id": CREDENTIALS_ID,
                "implementation": "openshell",
                "configuration": {"binaries": [f"{CODEX_TARGET}/bin/codex"]},
            },
        },
        "backend": [
            {
                "id": "sandboxd",
                "type": "openshell",
                "configuration": {
                    "endpoint": f"https://127.0.0.1:{ports.sandboxd}",
                    "auth": {
                        "mode": "bearerTokenFile",
                        "path": str(state.sandboxd / "auth" / "control-plane.token"),
                    },
                    "rootCertificatePath": str(state.sandboxd / "auth" / "ca.crt"),
                },
                "drivers": {"sandbox": SANDBOX_ID, "credential_gateway": CREDENTIALS_ID},
            }
        ],
        "logging": {"level": "info"},
    }
    return (
        "# Written by `occ up`; edit nothing here, it is written again at each start.\n"
        + yaml.safe_dump(document, sort_keys=False)
    )


def sandboxd_toml(
    state: StateDirectory, ports: Ports, programs: Programs, overrides: tuple[UpstreamOverride, ...]
) -> str:
    """Return sandboxd's configuration."""
    lines = [
        "[gateway]",
        f"listen = {_toml(f'127.0.0.1:{ports.sandboxd}')}",
        f"state_dir = {_toml(str(state.sandboxd))}",
        "",
    ]
    for source, target in ((programs.codex, CODEX_TARGET), (programs.harness, HARNESS_TARGET)):
        lines += [
            "[[confinement.read_only]]",
            f"source = {_toml(str(source))}",
            f"target = {_toml(target)}",
            "",
        ]
    lines += [
        "[[mount_sources]]",
        f"id = {_toml(MOUNT_SOURCE)}",
        f"path = {_toml(str(state.agents))}",
        "",
    ]
    for override in overrides:
        lines += [
            "[[egress.upstream]]",
            f"host = {_toml(override.host)}",
            f"port = {override.port}",
            f"connect = {_toml(override.connect)}",
            f"ca_file = {_toml(override.ca_file)}",
            "",
        ]
    return "\n".join(lines)


def agentgw_toml(state: StateDirectory, ports: Ports, identity: ServerIdentity) -> str:
    """Return the Agent Gateway's configuration."""
    values: dict[str, str | int] = {
        "listen": f"127.0.0.1:{ports.gateway}",
        "tls_cert": str(identity.certificate),
        "tls_key": str(identity.key),
        "routes_dir": str(state.routes),
        "control_socket": str(state.run / "agentgw.sock"),
        "api_url": f"http://127.0.0.1:{ports.private}",
        "api_token_file": str(state.keys / "internal.token"),
    }
    return "".join(
        f"{name} = {_toml(value) if isinstance(value, str) else value}\n"
        for name, value in values.items()
    )


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
