"""What a person has in an acceptance test: a terminal in which `occ` is typed, a machine, an offline model, and patience with a deadline."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oce.dev.pki import ensure_identity
from oce.dev.traces import sandboxes_of, traces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OCC = Path(sys.executable).with_name("occ")
ENDPOINT = "api.openai.com"
MODEL_KEY = "sk-acceptance-0123456789abcdef"
DEADLINE = 90.0


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Shell:
    """A person's terminal: `occ …` with this person's environment."""

    environment: dict[str, str]
    folder: Path

    def occ(
        self, *words: str, stdin: str = "", code: int | None = 0, env: dict[str, str] | None = None
    ) -> Said:
        """Run a command; `code` is the exit code that it must have, None for any."""
        done = subprocess.run(
            [str(OCC), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            cwd=self.folder,
            env={**self.environment, **(env or {})},
        )
        said = Said(done.returncode, done.stdout, done.stderr)
        assert code is None or said.code == code, (words, said)
        return said

    def json(self, *words: str) -> Any:
        return self.occ(*words, "-o", "json").json()

    def chat(self, agent: str, text: str, *options: str) -> str:
        return self.occ("agent", "chat", agent, text, *options).out.strip()


@dataclass
class ModelEndpoint:
    """The offline model, a process that a test may end and start again on the same port."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        identity = ensure_identity(self.folder, "model", (ENDPOINT,), datetime.now(UTC))
        (self.folder / "key").write_text(MODEL_KEY)
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oce.dev.model_server"),
                *("--listen", f"127.0.0.1:{self.port}", "--ready-file", str(ready)),
                *("--cert", str(identity.certificate), "--key", str(identity.key)),
                *("--api-key-file", str(self.folder / "key")),
            ],
            stdin=subprocess.DEVNULL,
        )
        until(ready.exists, "the model server listens")
        self.port = int(ready.read_text().rpartition(":")[2])

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
            self.process = None

    def stats(self) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.check_hostname = False
        url = f"https://127.0.0.1:{self.port}/stats"
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            return json.load(answer)

    def operator_settings(self) -> str:
        return (
            f'durable = false\n[[upstream]]\nhost = "{ENDPOINT}"\nport = 443\n'
            f'connect = "127.0.0.1:{self.port}"\nca_file = "{self.folder / "ca.crt"}"\n'
        )


@dataclass
class Machine:
    """A state directory that `occ up` serves, and the terminal of the person who owns it."""

    root: Path
    state: Path
    shell: Shell
    model: ModelEndpoint
    sandboxes: set[str] = field(default_factory=set)

    def pid(self, program: str) -> int:
        """Return the pid of a program, as its supervisor recorded it."""
        if program == "postgresql":
            name = self.state / "postgres" / "data" / "postmaster.pid"
        else:
            name = self.state / "run" / f"{program}.pid"
        return int(name.read_text().split()[0])

    def kill(self, program: str, number: int = signal.SIGKILL) -> int:
        pid = self.pid(program)
        os.kill(pid, number)
        return pid

    def until_serving(self) -> None:
        until(lambda: self.shell.occ("status", code=None).code == 0, "every component serves")

    def supervisor(self) -> int:
        return int(json.loads((self.state / "run" / "lock").read_text())[0])

    def sandboxes_of(self, agent: str) -> list[str]:
        """Return the pid namespaces in which a Codex of this Agent runs, by the kernel's word."""
        mine = str(Path("/proc/self/ns/pid").readlink())
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes()
                space = str((entry / "ns" / "pid").readlink())
                mounts = (entry / "mountinfo").read_text(errors="replace")
            except OSError:
                continue
            if b"app-server" in command and space != mine and agent in mounts:
                found.add(space)
        return sorted(found)


def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Poll a condition until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def new_shell(root: Path, state: Path) -> Shell:
    folder = root / "desk"
    folder.mkdir(exist_ok=True)
    return Shell(
        {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "OCC_HOME": str(root / "contexts"),
            "OCC_STATE_DIR": str(state),
            "OPENAI_API_KEY": MODEL_KEY,
            "LC_ALL": "C.UTF-8",
        },
        folder,
    )


def new_root(prefix: str) -> Path:
    root = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    root.chmod(0o711)
    return root


@contextmanager
def served_machine(prefix: str, model: ModelEndpoint, upstreams: str = "") -> Iterator[Machine]:
    """Yield a machine that serves, with the material of every Agent applied; afterwards nothing of it may be left."""
    root = new_root(prefix)
    state = root / "state"
    state.mkdir()
    (state / "operator.toml").write_text(model.operator_settings() + upstreams)
    found = Machine(root, state, new_shell(root, state), model)
    try:
        found.shell.occ("up", "--detach")
        found.shell.occ("apply", "-f", "-", stdin=MATERIAL)
        yield found
    finally:
        found.sandboxes |= sandboxes_of(state / "sandboxd")
        found.shell.occ("down", "--purge", "--yes")
        shutil.rmtree(root, ignore_errors=True)
    assert traces_of(root, sandboxes=frozenset(found.sandboxes)) == ()


MATERIAL = """\
kind: Secret
name: openai-key
valueFrom: {env: OPENAI_API_KEY}
---
kind: CredentialSource
name: openai
type: openai
secrets: {api_key: openai-key}
---
kind: Configuration
name: plain
values:
  agents:
    defaults:
      model: {primary: openai/gpt-5.2-codex}
"""


def agent_document(name: str, configuration: str = "plain", source: str = "openai") -> str:
    return f"""\
kind: Agent
name: {name}
configuration: {configuration}
executionMode: dedicated
harnessAuth: {{method: credential_source, source: {source}}}
credentialSources: [{source}]
"""


def serve(shell: Shell, name: str, **what: str) -> dict[str, Any]:
    """Create and deploy an Agent; return it."""
    shell.occ("apply", "-f", "-", "--deploy", "--wait", stdin=agent_document(name, **what))
    found: dict[str, Any] = shell.json("agent", "get", name)
    return found
