"""A Sandbox's policy on the wire: what is accepted, what it becomes for enforcement, and its hash.

Acceptance rules and their words are those of reference/openshell-gateway.md b.3 and a.7. Parts of the wire's language that
this gateway does not enforce are refused by name: a rule that would be stored but not honoured is worse than none.
"""

from __future__ import annotations

import hashlib
import re

from oce.policy.model import (
    Access,
    Endpoint,
    Enforcement,
    NetworkPolicy,
    PolicyError,
    Protocol,
    QueryMatcher,
    RequestMatcher,
    Rule,
    Tls,
)
from oce.policy.validate import require_valid
from oce.sandboxd.api.stubs import Proto, policy_pb, unknown_field
from oce.sandboxd.lifecycle.providers import ANY_BINARY, RULE_PREFIX, ports_of
from oce.sandboxd.state.refusals import invalid, precondition

MAX_BYTES = 256 * 1024
MAX_PATHS = 256
MAX_PATH = 4096
_USER = re.compile(r"sandbox|[1-9][0-9]{0,9}")
_MAX_UID = 4294967294
_READ_ONLY = ("/usr", "/lib", "/proc", "/dev/urandom", "/etc", "/var/log")
_READ_WRITE = ("/tmp", "/dev/null")  # noqa: S108 - paths inside the Sandbox
_PROTOCOLS = {
    "": Protocol.TCP,
    "tcp": Protocol.TCP,
    "rest": Protocol.REST,
    "websocket": Protocol.WEBSOCKET,
}
_TLS = {0: Tls.AUTO, 1: Tls.SKIP}
_ENFORCEMENT = {0: Enforcement.AUDIT, 1: Enforcement.ENFORCE, 2: Enforcement.AUDIT}
_ACCESS = {0: Access.NONE, 1: Access.READ_ONLY, 2: Access.READ_WRITE, 3: Access.FULL}
_NOT_ENFORCED = (
    "persisted_queries",
    "graphql_persisted_queries",
    "graphql_max_body_bytes",
    "websocket_credential_rewrite",
    "request_body_credential_rewrite",
    "credential_signing",
    "signing_service",
    "signing_region",
    "json_rpc_max_body_bytes",
    "mcp",
    "allow_uninspected_credentials",
    "advisor_proposed",
    "provider_credentialed",
    "token_grant_owner",
)
_MATCHER_NOT_ENFORCED = ("command", "operation_type", "operation_name", "fields", "params")


def default_policy() -> Proto:
    """Return the restrictive default: system read-only, the work directory writable, no network."""
    return policy_pb.SandboxPolicy(
        version=1,
        filesystem=policy_pb.FilesystemPolicy(
            include_workdir=True, read_only=_READ_ONLY, read_write=_READ_WRITE
        ),
        landlock=policy_pb.LandlockPolicy(compatibility="best_effort"),
    )


def policy_hash(policy: Proto) -> str:
    """Return the opaque hash of a policy."""
    return hashlib.sha256(policy.SerializeToString(deterministic=True)).hexdigest()


def check_policy(policy: Proto) -> None:
    """Refuse what b.3 refuses. Raises Refusal INVALID_ARGUMENT, FAILED_PRECONDITION for ambiguity."""
    found = unknown_field(policy, "policy")
    if found is not None:
        raise invalid(found, "is not a field this gateway knows")
    if policy.version != 1:
        raise invalid("policy.version", "must be 1")
    if policy.ByteSize() > MAX_BYTES:
        raise invalid("policy", "is larger than 256 KiB")
    _check_filesystem(policy.filesystem)
    if policy.landlock.compatibility not in {"", "best_effort", "hard_requirement"}:
        raise invalid("policy.landlock.compatibility", "must be best_effort or hard_requirement")
    for field in ("run_as_user", "run_as_group"):
        value = getattr(policy.process, field)
        if value and (not _USER.fullmatch(value) or (value != "sandbox" and int(value) > _MAX_UID)):
            raise invalid(f"policy.process.{field}", "must be sandbox or a number, never root")
    if policy.network_middlewares:
        raise invalid("policy.network_middlewares", "is not supported by this gateway")
    for key in policy.network_policies:
        if key.startswith(RULE_PREFIX):
            raise invalid(
                f"policy.network_policies[{key}]", f"keys with {RULE_PREFIX} are reserved"
            )
    network_policy(policy, authored=True)


def _check_filesystem(filesystem: Proto) -> None:
    paths = [*filesystem.read_only, *filesystem.read_write]
    if len(paths) > MAX_PATHS:
        raise invalid("policy.filesystem", "names more than 256 paths")
    for path in paths:
        if not path.startswith("/") or "\0" in path or len(path) > MAX_PATH:
            raise invalid("policy.filesystem", "paths are absolute and at most 4096 bytes")
        if ".." in path.split("/"):
            raise invalid("policy.filesystem", "path traversal is not allowed")
    if any(not path.strip("/") for path in filesystem.read_write):
        raise invalid("policy.filesystem.read_write", "'/' is too broad")


def check_replacement(current: Proto, wanted: Proto) -> None:
    """Refuse a live change of what is fixed after the first activation; an omitted section means unchanged."""
    for section in ("landlock", "process"):
        if wanted.HasField(section) and getattr(wanted, section) != getattr(current, section):
            raise invalid(f"policy.{section}", "cannot be changed on a live sandbox")
    if not wanted.HasField("filesystem"):
        return
    if wanted.filesystem.include_workdir != current.filesystem.include_workdir:
        raise invalid("policy.filesystem.include_workdir", "cannot be changed on a live sandbox")
    for mode in ("read_only", "read_write"):
        lost = set(getattr(current.filesystem, mode)) - set(getattr(wanted.filesystem, mode))
        if lost:
            raise invalid(
                f"policy.filesystem.{mode}", f"{min(lost)} cannot be removed on a live sandbox"
            )
        gained = set(getattr(wanted.filesystem, mode)) - set(getattr(current.filesystem, mode))
        if gained:
            raise invalid(
                f"policy.filesystem.{mode}",
                "this gateway confines files at launch; stop the sandbox and create it with the longer list",
            )


def completed(policy: Proto, base: Proto | None = None) -> Proto:
    """Return a policy whose omitted static sections come from `base` (the default when there is none)."""
    result = policy_pb.SandboxPolicy()
    result.CopyFrom(policy)
    source = default_policy() if base is None else base
    for section in ("filesystem", "landlock", "process"):
        if not result.HasField(section) and source.HasField(section):
            getattr(result, section).CopyFrom(getattr(source, section))
    return result


def network_policy(policy: Proto, *, authored: bool = False) -> NetworkPolicy:
    """Convert the network part; an `authored` one carries no provider layers. Raises Refusal for what is not accepted."""
    rules = tuple(
        Rule(
            key=key,
            name=rule.name or key,
            binaries=tuple(binary.path for binary in rule.binaries),
            endpoints=tuple(
                _endpoint(endpoint, f"policy.network_policies[{key}].endpoints[{index}]")
                for index, endpoint in enumerate(rule.endpoints)
            ),
        )
        for key, rule in sorted(policy.network_policies.items())
    )
    converted = NetworkPolicy(rules)
    try:
        require_valid(converted, authored=authored)
    except PolicyError as error:
        if "for the same traffic" in error.problem:
            raise precondition(f"network endpoint ambiguity validation failed: {error}") from error
        raise invalid(f"policy.{error.path}", error.problem) from error
    return converted


def check_profile(profile: Proto) -> None:
    """Refuse a profile whose layer could not be enforced. Raises Refusal."""
    if not profile.endpoints:
        return
    policy = policy_pb.SandboxPolicy(version=1)
    rule = policy.network_policies[f"{RULE_PREFIX}{profile.id}"]
    rule.endpoints.extend(profile.endpoints)
    rule.binaries.extend(profile.binaries or [policy_pb.NetworkBinary(path=ANY_BINARY)])
    network_policy(policy)


def _endpoint(endpoint: Proto, where: str) -> Endpoint:
    for field in _NOT_ENFORCED:
        value = getattr(endpoint, field)
        present = endpoint.HasField(field) if field == "mcp" else bool(value)
        if present:
            raise invalid(f"{where}.{field}", "is not supported by this gateway")
    if endpoint.protocol not in _PROTOCOLS:
        raise invalid(f"{where}.protocol", "must be empty, tcp, rest or websocket on this gateway")
    for field, table in (("tls", _TLS), ("enforcement", _ENFORCEMENT), ("access", _ACCESS)):
        if getattr(endpoint, field) not in table:
            raise invalid(f"{where}.{field}", "has a value that is not accepted")
    return Endpoint(
        host=endpoint.host.lower(),
        ports=ports_of(endpoint),
        protocol=_PROTOCOLS[endpoint.protocol],
        tls=_TLS[endpoint.tls],
        enforcement=_ENFORCEMENT[endpoint.enforcement],
        access=_ACCESS[endpoint.access],
        allow=tuple(_matcher(rule.allow, f"{where}.rules") for rule in endpoint.rules),
        deny=tuple(_matcher(rule, f"{where}.deny_rules") for rule in endpoint.deny_rules),
        path=endpoint.path,
        allowed_ips=tuple(endpoint.allowed_ips),
        allow_encoded_slash=endpoint.allow_encoded_slash,
    )


def _matcher(rule: Proto, where: str) -> RequestMatcher:
    for field in _MATCHER_NOT_ENFORCED:
        if getattr(rule, field):
            raise invalid(f"{where}.{field}", "is not supported by this gateway")
    return RequestMatcher(
        method=rule.method or "*",
        path=rule.path or "**",
        query=tuple(
            QueryMatcher(key, tuple(matcher.any) or (matcher.glob,))
            for key, matcher in sorted(rule.query.items())
        ),
    )
