"""`openenv-openshell`: the documented quickstart with the unmodified OpenEnv client; the environment is a small echo server.

Names below `.localhost` are loopback (RFC 6761); a resolver that does not know is taught here, as an operator would.
"""

import importlib.metadata
import json
import pathlib
import socket
import sys

from openenv.core.generic_client import GenericEnvClient
from openenv_openshell import OpenShellProvider

_resolve = socket.getaddrinfo


def _loopback(host, *arguments, **options):
    local = isinstance(host, str) and host.endswith(".localhost")
    return _resolve("127.0.0.1" if local else host, *arguments, **options)


socket.getaddrinfo = _loopback

provider = OpenShellProvider(
    restricted_alpha_cleanup_acknowledged=True,
    command=["python3", "-c", pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")],
    service_port=8000,
    policy={
        "version": 1,
        "filesystem_policy": {
            "include_workdir": True,
            "read_only": ["/usr", "/lib", "/etc"],
            "read_write": ["/tmp", "/dev/null"],
        },
        "landlock": {"compatibility": "best_effort"},
    },
    labels={"openenv.environment": "echo"},
)
env = GenericEnvClient.from_docker_image("host", provider=provider).sync()
with env:
    env.reset()
    result = env.step({"message": "hello from OpenShell"})
    facts = {
        "version": importlib.metadata.version("openenv-openshell"),
        "sdk": importlib.metadata.version("openshell"),
        "echo": result.observation["echo"],
        "steps": env.state()["step_count"],
        "url": provider.metadata.service_url,
        "healthy": provider.metadata.ready_at is not None,
    }
facts["deleted"] = provider.state.deleted
print(json.dumps(facts))  # noqa: T201 - the test reads it
