"""The model probe: one tiny turn that proves key, endpoint, policy and model before the Harness says it serves.

It is ``codex exec`` without tools, files or user configuration, read as a stream of JSON events. :class:`Reading` is the pure rule of
what counts as success (reference/kubernetes-compute.md §13.4); :func:`prove_model` runs it, at most twice.

Ours: when the endpoint answered 401 or 403 three times in a row the verdict falls at once. Codex would retry for 13 s, and a
deployment with a wrong key should fail while its author still looks.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time

from oce.harness.codex import log
from oce.harness.codex.children import Children, kill_group
from oce.harness.codex.failure import Cause, HeldFailure, not_started, process_exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oce.harness.codex.environment import Settings

ATTEMPT_SECONDS = 30.0
RETRY_SECONDS = 1.0
MAX_RECONNECTS = 10
REFUSALS_UNTIL_VERDICT = 3
MAX_OUTPUT_BYTES = 1024 * 1024
_PROMPT = "Reply with the one word READY and nothing else."
_REFUSED = re.compile(r"\b40[13]\b")
_HARMLESS_ITEMS = frozenset({"agent_message", "reasoning", "error"})
_ITEM_EVENTS = frozenset({"item.started", "item.updated", "item.completed"})
_KEPT_VARIABLES = (
    "PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CODEX_CA_CERTIFICATE",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "https_proxy",
    "all_proxy",
    "no_proxy",
)
# The probe needs a model, nothing else: whatever looks around, remembers, or offers a tool is off.
_FEATURES_OFF = (
    "api_key_model_discovery",
    "apps",
    "auth_elicitation",
    "browser_use",
    "browser_use_external",
    "code_mode_host",
    "computer_use",
    "goals",
    "hooks",
    "image_generation",
    "in_app_browser",
    "memories",
    "multi_agent",
    "plugin_sharing",
    "plugins",
    "recommended_plugins",
    "remote_plugin",
    "shell_snapshot",
    "shell_tool",
    "unified_exec",
)


class Reading:
    """What the events of one attempt say. Feed it lines, then ask :meth:`verdict`."""

    def __init__(self) -> None:
        self._started = 0
        self._completed = 0
        self._replied = False
        self._reconnects = 0
        self._refusals = 0
        self._ended_with_completion = False
        self._failed = False
        self._wrong: Cause | None = None

    @property
    def decided(self) -> bool:
        """Whether more events cannot change the verdict."""
        return self._wrong is not None or self._refusals >= REFUSALS_UNTIL_VERDICT

    def feed(self, line: bytes) -> None:
        """Take one line of output."""
        try:
            event = json.loads(line)
        except ValueError:
            self._wrong = self._wrong or Cause("INVALID_OUTPUT", "json")
            return
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self._wrong = self._wrong or Cause("INVALID_OUTPUT", "shape")
            return
        self._take(event["type"], event)

    def _take(self, kind: str, event: dict[str, object]) -> None:
        self._ended_with_completion = kind == "turn.completed"
        if kind == "turn.started":
            self._started += 1
        elif kind == "turn.completed":
            self._completed += 1
        elif kind == "turn.failed":
            self._failed = True
            self._note_refusal(event, weight=REFUSALS_UNTIL_VERDICT)
        elif kind == "error":
            self._take_error(event)
        elif kind in _ITEM_EVENTS:
            self._take_item(event.get("item"))
        elif kind != "thread.started":
            self._wrong = self._wrong or Cause("PROBE_STATUS", "unexpected-event")

    def _take_error(self, event: dict[str, object]) -> None:
        """Count a lost connection; Codex says the last error twice, as ``error`` and as ``turn.failed``."""
        self._note_refusal(event, weight=1)
        self._reconnects += 1
        if self._reconnects > MAX_RECONNECTS:
            self._wrong = self._wrong or Cause("PROBE_STATUS", "error-event")

    def _take_item(self, item: object) -> None:
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            self._wrong = self._wrong or Cause("INVALID_OUTPUT", "shape")
        elif item["type"] not in _HARMLESS_ITEMS:
            self._wrong = self._wrong or Cause("PROBE_STATUS", "tool-event")
        elif item["type"] == "agent_message" and str(item.get("text", "")).strip():
            self._replied = True

    def _note_refusal(self, event: dict[str, object], *, weight: int) -> None:
        """Count refusals in a row; a 403 to the WebSocket attempt may be a proxy's and the HTTP attempt still works."""
        text = str(event.get("message") or event.get("error") or "")
        refused = _REFUSED.search(text)
        if refused and refused[0] == "403" and "wss://" in text:
            return
        self._refusals = self._refusals + weight if refused else 0

    def verdict(self, status: int) -> HeldFailure | None:
        """Judge the attempt by its events and the child's return code; None is success."""
        if self._refusals >= REFUSALS_UNTIL_VERDICT:
            return HeldFailure("AUTHENTICATION_FAILED", check="model-probe")
        cause = self._wrong or self._shortcoming(status)
        if cause is None:
            return None
        return HeldFailure("MODEL_PROBE_FAILED", check="model-probe", cause=cause)

    def _shortcoming(self, status: int) -> Cause | None:
        if self._failed:
            return Cause("PROBE_STATUS", "turn-failed")
        if status != 0:
            return process_exit(status)
        if not self._replied:
            return Cause("PROBE_STATUS", "no-reply")
        if (self._started, self._completed) != (1, 1) or not self._ended_with_completion:
            return Cause("PROBE_STATUS", "unexpected-event")
        return None


def command(settings: Settings) -> list[str]:
    """Return the probe's command line."""
    options = [
        'approval_policy="never"',
        'cli_auth_credentials_store="file"',
        "analytics.enabled=false",
        *(f"features.{name}=false" for name in _FEATURES_OFF),
    ]
    if settings.base_url is not None:
        options.append(f"openai_base_url={json.dumps(settings.base_url)}")
    return [
        settings.binary,
        "exec",
        *("--ephemeral", "--ignore-user-config", "--ignore-rules", "--json"),
        *("--skip-git-repo-check", "--sandbox", "read-only", "--model", settings.model),
        *(part for option in options for part in ("-c", option)),
        _PROMPT,
    ]


def environment(settings: Settings, home: str) -> dict[str, str]:
    """Return the probe's minimal environment."""
    kept = {
        key: settings.environment[key] for key in _KEPT_VARIABLES if key in settings.environment
    }
    return kept | {"HOME": home, "CODEX_HOME": settings.codex_home, "RUST_LOG": "error"}


def prove_model(settings: Settings, children: Children) -> None:
    """Run the probe, again once after a timeout. Raises HeldFailure."""
    for attempt in (1, 2):
        started = time.monotonic()
        failure = _attempt(settings, children)
        log.event(
            "codex.model_probe",
            attempt=attempt,
            model=settings.model,
            result="ok" if failure is None else failure.code,
            duration_ms=round((time.monotonic() - started) * 1000, 1),
        )
        if failure is None or children.stopping():
            return
        if failure.code != "MODEL_PROBE_TIMEOUT" or attempt == 2:  # noqa: PLR2004 - the last one
            raise failure
        if children.sleep(RETRY_SECONDS):
            return


def _attempt(settings: Settings, children: Children) -> HeldFailure | None:
    home = f"{settings.codex_home}/probe-home"
    os.makedirs(home, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs start time
    try:
        child = children.start(
            command(settings),
            environment=environment(settings, home),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        return HeldFailure("MODEL_PROBE_FAILED", check="model-probe", cause=not_started(error))
    reading = Reading()
    in_time = _read(child, reading, time.monotonic() + ATTEMPT_SECONDS)
    if not in_time or reading.decided:
        kill_group(child, signal.SIGKILL)
    status = children.finish(child)
    if child.stdout is not None:
        child.stdout.close()
    if not in_time:
        return HeldFailure("MODEL_PROBE_TIMEOUT", check="model-probe")
    return reading.verdict(status)


def _read(child: subprocess.Popen[bytes], reading: Reading, deadline: float) -> bool:
    """Feed the output until it ends or the verdict is sure; return False when time ran out first."""
    if child.stdout is None:
        return True
    descriptor, rest, total = child.stdout.fileno(), b"", 0
    while not reading.decided and total < MAX_OUTPUT_BYTES:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
            return False
        data = os.read(descriptor, 65536)
        if not data:
            break
        total += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                reading.feed(line)
    return True
