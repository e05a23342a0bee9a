"""The failure catalogue: every code the product shows, once.

Worker, API, CLI, Console and docs read the same row, so a person sees one sentence for one fault wherever they look. A code may
appear in several *tempos* (what the worker does about it); where the mission gives a code two tempos the refusal that carries it
says which. Unknown exceptions never appear here: they become `DEPENDENCY_UNAVAILABLE` in the store and keep their class in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Tempo(StrEnum):
    """What follows from a failed pass: the only four ways a pass can end besides success share these names."""

    PENDING = "pending"
    """Nothing is wrong yet; look again soon, no attempt is spent, the convergence deadline bounds it."""
    TRANSIENT = "transient"
    """A named dependency is away; like pending, and named instead of the deadline when it is still away then."""
    RETRY = "retry"
    """An unknown fault; back off and spend an attempt."""
    PERMANENT = "permanent"
    """A retry cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One row. `message` is public and fixed; `hint` says what to do; `http` is set for codes the HTTP API answers with."""

    code: str
    message: str
    hint: str = ""
    tempos: frozenset[Tempo] = frozenset()
    http: int | None = None

    @property
    def docs(self) -> str:
        """Anchor in the failure reference."""
        return f"docs/reference/failures.md#{self.code.lower().replace('_', '-')}"


def _http(code: str, status: int, message: str, hint: str = "") -> Failure:
    return Failure(code=code, message=message, hint=hint, http=status)


def _work(code: str, tempo: Tempo | tuple[Tempo, ...], message: str, hint: str = "") -> Failure:
    tempos = frozenset((tempo,) if isinstance(tempo, Tempo) else tempo)
    return Failure(code=code, message=message, hint=hint, tempos=tempos)


_P, _T, _R, _X = Tempo.PENDING, Tempo.TRANSIENT, Tempo.RETRY, Tempo.PERMANENT

_API: Final = (
    _http(
        "INVALID_REQUEST",
        400,
        "The request is not valid.",
        "See `details`: each names a path and what is wrong there.",
    ),
    _http(
        "UNAUTHENTICATED",
        401,
        "The service key is missing, unknown, expired or revoked.",
        "Send a valid key in `x-api-key`; `occ context list` shows which key file is used.",
    ),
    _http(
        "FORBIDDEN",
        403,
        "No grant allows this.",
        "Ask an administrator for a role binding: `occ binding create`.",
    ),
    _http(
        "NOT_FOUND",
        404,
        "There is no such resource here.",
        "Check the name or id and the Namespace.",
    ),
    _http("METHOD_NOT_ALLOWED", 405, "This route does not answer that method."),
    _http("RESOURCE_CONFLICT", 409, "The resource's state does not allow this."),
    _http("INSTALLATION_EXISTS", 409, "The Installation exists already."),
    _http(
        "AGENT_DELETING",
        409,
        "The Agent is being deleted.",
        "Wait until it is gone, or create another Agent.",
    ),
    _http(
        "NAMESPACE_NOT_READY",
        409,
        "The Namespace is not ready.",
        "Wait for it: `occ namespace get NAME`.",
    ),
    _http(
        "NAMESPACE_NOT_EMPTY",
        409,
        "The Namespace still holds resources.",
        "Delete what the message lists first.",
    ),
    _http(
        "CREDENTIAL_GATEWAY_NOT_CONFIGURED",
        409,
        "No Credential Gateway is configured.",
        "Select `drivers.credential_gateway` in the startup YAML.",
    ),
    _http(
        "SECRET_BINDINGS_UNSUPPORTED",
        409,
        "No Agent Gateway program of this installation consumes `secretBindings`.",
        "Remove `secretBindings` from the Configuration; give the model key through a credential source.",
    ),
    Failure(
        code="WORKSPACE_SETUP_UNSUPPORTED",
        message="The selected Drivers do not set up initial workspace files.",
        hint="Create the Agent as `dedicated` beside a Sandbox Driver that initialises workspaces, or without these files.",
        tempos=frozenset((Tempo.PERMANENT,)),
        http=409,
    ),
    _http(
        "PRECONDITION_FAILED",
        412,
        "The resource changed since you read it.",
        "Read it again, apply your change to what you find, and send its generation in `If-Match`.",
    ),
    _http(
        "IDEMPOTENCY_KEY_REUSED",
        409,
        "This Idempotency-Key was used with another request.",
        "Use a fresh key for a different request.",
    ),
    _http("PAYLOAD_TOO_LARGE", 413, "The request body is too large."),
    _http(
        "UNSUPPORTED_MEDIA_TYPE",
        415,
        "The request body must be JSON.",
        "Send `content-type: application/json`.",
    ),
    _http("RATE_LIMITED", 429, "Too many requests.", "Wait as long as `Retry-After` says."),
    _http(
        "INTERNAL_ERROR",
        500,
        "Something went wrong inside the control plane.",
        "Quote the request id: the log has the cause under it.",
    ),
    _http("NOT_IMPLEMENTED", 501, "The selected Driver does not offer this."),
    _http(
        "UNKNOWN_OUTCOME",
        503,
        "It is not known whether this took effect.",
        "Read the resource before you try again.",
    ),
    _http(
        "RUNTIME_LOGS_SOURCE_UNAVAILABLE", 400, "The active revision has no Sandbox log to read."
    ),
    _http(
        "RUNTIME_LOGS_SANDBOX_NOT_FOUND",
        503,
        "The Sandbox of the active revision cannot be seen.",
        "It is gone, or the control plane's identity may not see it: `occ agent harness-status`.",
    ),
    _http("RUNTIME_LOGS_UNAVAILABLE", 503, "The Sandbox log could not be read."),
    _http(
        "STORAGE_FULL",
        503,
        "The database has no space left; nothing was written.",
        "Free disk space where the state directory lies, then repeat the request.",
    ),
)

_PENDING: Final = (
    _work("REVISION_INCOMPLETE", _P, "The runtime is not ready yet."),
    _work(
        "NAMESPACE_INCOMPLETE",
        (_P, _R, _X),
        "The Namespace's infrastructure is not complete.",
        "The worker's log names the step.",
    ),
    _work("WORKSPACE_NODE_PENDING", _P, "The workspace node has not connected to its gateway yet."),
    _work(
        "SANDBOX_DELETION_PENDING",
        _P,
        "The Sandbox gateway accepted the deletion and has not finished it.",
    ),
    _work("AGENT_DRAIN_PENDING", _P, "Running turns of the previous revision are being finished."),
    _work(
        "REFUSED_CANDIDATE_STOP_PENDING",
        _P,
        "The refused candidate is being stopped before the refusal is recorded.",
    ),
    _work(
        "AGENT_GATEWAY_UNAVAILABLE",
        (_T, _X),
        "The Agent Gateway cannot be reached.",
        "`occ status` shows whether it runs.",
    ),
    _work(
        "SANDBOX_ADMISSION_LIMIT_REACHED",
        (_T, _X),
        "The Sandbox gateway refuses new requests until earlier ones are settled.",
    ),
    _work(
        "SANDBOX_GATEWAY_UNAVAILABLE",
        (_T, _X),
        "The Sandbox gateway cannot be reached.",
        "`occ status` shows whether sandboxd runs.",
    ),
)

_RETRY: Final = (
    Failure(
        code="DEPENDENCY_UNAVAILABLE",
        message="A dependency did not answer as it should.",
        hint="The worker's log has the cause under the work id.",
        tempos=frozenset((_R, _X)),
        http=503,
    ),
    _work("ACTIVE_REVISION_CHANGED", _R, "The selected revision changed meanwhile."),
    _work(
        "LEASE_EXPIRED", (_R, _X), "The previous worker stopped in the middle; the work is resumed."
    ),
    _work(
        "ACTIVE_REVISION_RECOVERY",
        _R,
        "The previous worker stopped after publishing; activation is being finished.",
    ),
    _work(
        "REVISION_FINALIZATION_INCOMPLETE",
        (_P, _R),
        "The revision is selected; its activation or its predecessor's removal is not finished.",
        "It is tried again until it is; the worker's log has the cause under the work id.",
    ),
    _work(
        "SANDBOX_DELETION_UNCONFIRMED",
        _R,
        "A deletion found nothing where a read had just found something.",
    ),
    _work("RECONCILIATION_PENDING", _R, "Another reconciliation is pending."),
    _work("WORKER_UNAVAILABLE", _R, "The worker could not use its queue."),
    _work("CLAIM_LOST", _R, "The worker lost its claim; another pass continues."),
)

_SANDBOX_IDENTITY_HINT: Final = (
    "Check the control plane's token file and the Sandbox gateway's signing key, or restore its Workspace role "
    "(a Workspace removed by someone else looks the same: a deploy recreates it), then repeat the operation."
)

_PERMANENT: Final = (
    _work("CONVERGENCE_DEADLINE_EXCEEDED", _X, "The work did not converge in time."),
    _work("MAX_ATTEMPTS_EXHAUSTED", _X, "Every attempt failed."),
    _work(
        "RUNTIME_AUTHENTICATION_FAILED",
        _X,
        "The model provider rejected the credential.",
        "Check the key and its access to the model, update the Secret and the credential source, then deploy again.",
    ),
    _work("RUNTIME_CPU_STARVED", _X, "The startup probe ran out of its CPU budget."),
    _work(
        "RUNTIME_MODEL_PROBE_TIMEOUT",
        _X,
        "The model did not answer the startup probe in time.",
        "Check that the endpoint is reachable from this machine and named correctly.",
    ),
    _work(
        "RUNTIME_MODEL_PROBE_FAILED",
        _X,
        "The startup probe of the model failed.",
        "Check the model name and the provider settings of the Configuration.",
    ),
    _work("RUNTIME_LOGIN_FAILED", _X, "The Harness could not sign in to its model provider."),
    _work(
        "RUNTIME_STARTUP_FAILED",
        _X,
        "The Harness could not start.",
        "`occ agent logs NAME` shows what it said.",
    ),
    _work(
        "SANDBOX_SECRET_ENVIRONMENT_UNSUPPORTED",
        _X,
        "The Sandbox Driver cannot deliver a Secret-backed environment.",
    ),
    _work(
        "SANDBOX_HARNESS_UNSUPPORTED",
        _X,
        "The Sandbox Driver does not support this Harness as it was asked for.",
        "The worker's log says what; after an upgrade or a downgrade deploy the Agent again.",
    ),
    _work(
        "SANDBOX_GATEWAY_UNAUTHORIZED",
        (_R, _X),
        "The Sandbox gateway refuses the control plane's identity.",
        _SANDBOX_IDENTITY_HINT,
    ),
    _work(
        "SANDBOX_GATEWAY_TOO_OLD",
        _X,
        "The Sandbox gateway lacks a feature this Agent needs.",
        "Run an OpenShell gateway of version 0.1.3 or newer.",
    ),
    _work(
        "SANDBOX_NAMESPACE_REFUSED",
        _X,
        "The Sandbox gateway refused the control plane's identity for this Namespace.",
        _SANDBOX_IDENTITY_HINT,
    ),
    _work(
        "SANDBOX_WORKSPACE_SETUP_REFUSED",
        _X,
        "The Sandbox Driver refused the initial workspace files.",
        "The worker's log says why: the workspace belongs to another setup, or the Configuration names another one.",
    ),
    _work(
        "SANDBOX_NETWORK_POLICY_CONFLICT",
        _X,
        "A network policy addition reaches a host that has its own path.",
    ),
    _work(
        "SANDBOX_OWNERSHIP_CONFLICT",
        _X,
        "An object with this revision's name belongs to somebody else or differs from it.",
        "The worker's log names the field; remove the stale object and deploy again.",
    ),
    _work(
        "SANDBOX_CONFINEMENT_UNAVAILABLE",
        _X,
        "This machine lacks a right that confinement needs.",
        "`occ doctor` names the right and how to get it.",
    ),
    _work("SANDBOX_FAILED", _X, "The Sandbox failed before its Harness served."),
    _work("HARNESS_EXITED", _X, "The Harness ended before it served."),
    _work(
        "SANDBOX_MODE_UNSUPPORTED",
        _X,
        "The Sandbox Driver does not implement the `managed` workspace mode.",
        "Use `gateway.workspaceMode: operator`.",
    ),
    _work(
        "CREDENTIAL_SOURCE_ENVIRONMENT_CONFLICT",
        _X,
        "Two credential sources use one environment name.",
    ),
    _work(
        "CREDENTIAL_SOURCE_UNAVAILABLE",
        _X,
        "A credential source of this revision is not usable.",
        "`occ credential-source get NAME` shows its state.",
    ),
    _work(
        "CREDENTIAL_ATTACHMENT_FAILED",
        _X,
        "A credential attachment was refused, withheld or revoked.",
    ),
    _work(
        "CREDENTIAL_GATEWAY_MISMATCH",
        _X,
        "The revision was admitted for another Credential Gateway.",
    ),
    _work(
        "HARNESS_AUTH_REQUIRED",
        _X,
        "The Agent has no model credential.",
        "Set `harnessAuth` to a credential source and deploy again.",
    ),
    _work(
        "HARNESS_DESCRIPTOR_MISMATCH",
        _X,
        "The revision names a Harness version this installation does not run.",
        "Deploy the Agent again.",
    ),
    _work(
        "COMPUTE_DRIVER_MISMATCH",
        _X,
        "The revision was admitted for another Compute Driver, or by a later version of it.",
        "Deploy the Agent again.",
    ),
    _work("SANDBOX_DRIVER_MISMATCH", _X, "The revision was admitted for another Sandbox Driver."),
    _work("INVALID_TARGET", _X, "The work names no valid target."),
    _work("INVALID_REVISION_OWNER", _X, "The revision's owner is gone."),
    _work("INVALID_AGENT_STATE", _X, "The Agent's state does not allow this work."),
    _work(
        "INVALID_DRIVER_OBSERVATION",
        _X,
        "A Driver answered for something else than it was asked about.",
    ),
    _work("AUTHORIZATION_DENIED", _X, "The actor of this work is no longer allowed to do it."),
    _work("ACTOR_REVOKED", _X, "The actor of this work no longer exists."),
    _work(
        "AGENT_PRINCIPAL_NOT_AUTHORIZED",
        _X,
        "The Agent's own principal lacks a grant on something its draft uses.",
        "Update the Agent's draft as somebody who holds that grant, or bind a role to the principal named in the message.",
    ),
    _work("REVISION_SUPERSEDED", _X, "A newer revision replaced this one."),
    _work("REVISION_STOPPED", _X, "The Agent was stopped."),
    _work("UNKNOWN_FAILURE", _X, "The work failed."),
)

CATALOGUE: Final = {failure.code: failure for failure in (*_API, *_PENDING, *_RETRY, *_PERMANENT)}
"""Code to row; the only table of failures in the product."""

SUCCESS_REASONS: Final = frozenset(
    (
        "AGENT_ALREADY_STOPPED",
        "AGENT_DELETED",
        "AGENT_STOPPED",
        "NAMESPACE_RECONCILED",
        "RECONCILE_SUCCEEDED",
        "REVISION_ACTIVATED",
        "REVISION_ALREADY_ACTIVE",
        "STOP_SUPERSEDED",
        "SUPERSEDED_TARGET",
    )
)
"""Reason codes of succeeded work; not failures."""

HELD_FAILURES: Final = {
    "AUTHENTICATION_FAILED": "RUNTIME_AUTHENTICATION_FAILED",
    "MODEL_PROBE_CPU_STARVED": "RUNTIME_CPU_STARVED",
    "MODEL_PROBE_TIMEOUT": "RUNTIME_MODEL_PROBE_TIMEOUT",
    "MODEL_PROBE_FAILED": "RUNTIME_MODEL_PROBE_FAILED",
    "LOGIN_FAILED": "RUNTIME_LOGIN_FAILED",
    "UNAVAILABLE": "RUNTIME_STARTUP_FAILED",
    "INCOMPATIBLE_RESPONSE": "RUNTIME_STARTUP_FAILED",
    "NOT_CONFIGURED": "RUNTIME_STARTUP_FAILED",
}
"""Code in a Harness's held failure document to deployment code (reference/worker-console.md §5.3)."""


def failure(code: str) -> Failure:
    """Return the row of a code; an unlisted one is a programming error and raises KeyError."""
    return CATALOGUE[code]
