"""The tables of schema `occ`: the one description of what is stored (reference/control-plane.md §15, worker-console.md §6.2).

Names compare byte by byte (collation "C"). Constraints repeat what the rules promise, so that a mistake in a use case is refused
by the database instead of being stored. Column meanings follow `oce.domain.resources`; where a column is ours, a comment says so.
`migrations/` freezes these definitions step by step; a test proves that both agree.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import UUID

from oce.store.columns import (
    SCHEMA,
    created,
    document,
    identifier,
    metadata,
    moment,
    name_column,
    named,
    one_of,
)
from oce.store.policy_tables import network_policy_applications
from oce.store.workspace_tables import workspace_setups

__all__ = ("SCHEMA", "metadata", "network_policy_applications", "workspace_setups")

installation = Table(
    "installation",
    metadata,
    identifier(primary_key=True),
    name_column(),
    created(),
    named(),
)
Index("installation_singleton", text("(true)"), unique=True, _table=installation)

namespaces = Table(
    "namespaces",
    metadata,
    identifier(primary_key=True),
    name_column(),
    identifier("existing_namespace", nullable=True),
    Column("status", Text, nullable=False),
    created(),
    moment("deleted_at"),
    named(),
    one_of("status", "provisioning", "ready", "failed", "deleting"),
    CheckConstraint("deleted_at IS NULL OR status = 'deleting'", name="tombstone"),
    UniqueConstraint("name", name="namespaces_name_unique"),
)
Index(
    "namespaces_existing_unique",
    namespaces.c.existing_namespace,
    unique=True,
    postgresql_where=namespaces.c.deleted_at.is_(None),
)
Index("namespaces_page", namespaces.c.created_at, namespaces.c.id)

iam_identities = Table(
    "iam_identities",
    metadata,
    identifier(primary_key=True),
    Column("kind", Text, nullable=False),
    identifier("namespace_id", nullable=True),
    identifier("agent_id", nullable=True),
    Column("issuer", Text),
    Column("subject", Text),
    created(),
    one_of("kind", "principal", "service_principal"),
    CheckConstraint(
        "(kind = 'principal') = (issuer IS NOT NULL AND subject IS NOT NULL)", name="subject"
    ),
    CheckConstraint(
        "agent_id IS NULL OR (kind = 'service_principal' AND namespace_id IS NOT NULL)",
        name="owner",
    ),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
    ForeignKeyConstraint(
        ["agent_id"], ["occ.agents.id"], deferrable=True, initially="DEFERRED", use_alter=True
    ),
    UniqueConstraint("agent_id", name="iam_identities_agent_unique"),
    UniqueConstraint("issuer", "subject", name="iam_identities_subject_unique"),
)
Index("iam_identities_page", iam_identities.c.namespace_id, iam_identities.c.created_at)

iam_groups = Table(
    "iam_groups",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id", nullable=True),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
)

iam_group_memberships = Table(
    "iam_group_memberships",
    metadata,
    identifier("group_id"),
    identifier("identity_id"),
    identifier("namespace_id", nullable=True),
    PrimaryKeyConstraint("group_id", "identity_id"),
    ForeignKeyConstraint(["group_id"], ["occ.iam_groups.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["identity_id"], ["occ.iam_identities.id"], ondelete="CASCADE"),
)

iam_roles = Table(
    "iam_roles",
    metadata,
    identifier(primary_key=True),
    Column("name", Text(collation="C")),
    identifier("namespace_id", nullable=True),
    # The permissions of a built-in role come with the program; this column is empty for it.
    document("permissions", "'[]'::jsonb"),
    Column("built_in", Boolean, nullable=False, server_default=text("false")),
    created(),
    CheckConstraint("name IS NULL OR char_length(name) BETWEEN 1 AND 200", name="name"),
    CheckConstraint("jsonb_typeof(permissions) = 'array'", name="permissions"),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
)

iam_access_bindings = Table(
    "iam_access_bindings",
    metadata,
    identifier(primary_key=True),
    Column("subject_kind", Text, nullable=False),
    identifier("subject_id"),
    identifier("role_id"),
    identifier("namespace_id", nullable=True),
    Column("resource_kind", Text),
    identifier("resource_id", nullable=True),
    created(),
    one_of("subject_kind", "identity", "group"),
    CheckConstraint("(resource_kind IS NULL) = (resource_id IS NULL)", name="target"),
    ForeignKeyConstraint(["role_id"], ["occ.iam_roles.id"]),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
)
Index("iam_access_bindings_subject", iam_access_bindings.c.subject_id)
Index(
    "iam_access_bindings_target",
    iam_access_bindings.c.resource_kind,
    iam_access_bindings.c.resource_id,
)

iam_restrictions = Table(
    "iam_restrictions",
    metadata,
    identifier(primary_key=True),
    Column("action", Text, nullable=False),
    Column("resource_kind", Text, nullable=False),
    identifier("namespace_id", nullable=True),
    identifier("resource_id", nullable=True),
    created(),
)
Index("iam_restrictions_rule", iam_restrictions.c.resource_kind, iam_restrictions.c.action)

service_keys = Table(
    "service_keys",
    metadata,
    identifier(primary_key=True),
    identifier("service_principal_id"),
    identifier("namespace_id", nullable=True),
    Column("name", Text(collation="C"), nullable=False),
    Column("secret_sha256", LargeBinary, nullable=False),
    created(),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    moment("last_used_at"),
    CheckConstraint("char_length(name) BETWEEN 1 AND 32", name="name"),
    CheckConstraint("octet_length(secret_sha256) = 32", name="secret"),
    ForeignKeyConstraint(["service_principal_id"], ["occ.iam_identities.id"], ondelete="CASCADE"),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
)
Index("service_keys_page", service_keys.c.created_at, service_keys.c.id)

secrets = Table(
    "secrets",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id"),
    name_column(),
    identifier("driver_id"),
    # Ours: `writing` until the Secret driver answered, `deleting` from the accepted deletion on.
    Column("state", Text, nullable=False),
    identifier("backend_namespace_name", nullable=True),
    identifier("backend_name", nullable=True),
    identifier("backend_key", nullable=True),
    identifier("backend_uid", nullable=True),
    created(),
    named(),
    one_of("state", "writing", "ready", "deleting"),
    CheckConstraint(
        "state <> 'ready' OR (backend_namespace_name IS NOT NULL AND backend_name IS NOT NULL"
        " AND backend_key IS NOT NULL AND backend_uid IS NOT NULL)",
        name="locator",
    ),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
    UniqueConstraint("namespace_id", "name", name="secrets_name_unique"),
    UniqueConstraint("namespace_id", "id", name="secrets_scope_unique"),
)
Index("secrets_page", secrets.c.namespace_id, secrets.c.created_at, secrets.c.id)

credential_sources = Table(
    "credential_sources",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id"),
    name_column(),
    Column("type", Text, nullable=False),
    document("config"),
    identifier("driver_id"),
    Column("state", Text, nullable=False),
    created(),
    # Ours: when the last registration or update was sent whose answer is not known; it may land until 30 s after we gave up.
    moment("effect_at"),
    named(),
    one_of("state", "registering", "ready", "deleting"),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
    UniqueConstraint("namespace_id", "name", name="credential_sources_name_unique"),
    UniqueConstraint("namespace_id", "id", name="credential_sources_scope_unique"),
)
Index(
    "credential_sources_page",
    credential_sources.c.namespace_id,
    credential_sources.c.created_at,
    credential_sources.c.id,
)

credential_source_secrets = Table(
    "credential_source_secrets",
    metadata,
    identifier("credential_source_id"),
    Column("field", Text, nullable=False),
    identifier("namespace_id"),
    identifier("secret_id"),
    PrimaryKeyConstraint("credential_source_id", "field"),
    ForeignKeyConstraint(
        ["namespace_id", "credential_source_id"],
        ["occ.credential_sources.namespace_id", "occ.credential_sources.id"],
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["namespace_id", "secret_id"],
        ["occ.secrets.namespace_id", "occ.secrets.id"],
        name="credential_source_secrets_secret_fk",
    ),
)
Index("credential_source_secrets_secret", credential_source_secrets.c.secret_id)

configurations = Table(
    "configurations",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id"),
    # Ours: an optional name, so that applying a file twice finds the same document.
    Column("name", Text(collation="C")),
    Column("kind", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    # Ours: the newest generation handed to the Configuration driver, so that an interrupted write never collides with the next one.
    Column("reserved_generation", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    document("secret_bindings"),
    created(),
    one_of("kind", "agent"),
    one_of("state", "writing", "ready", "deleting"),
    CheckConstraint(
        "generation BETWEEN 1 AND 9007199254740991 AND reserved_generation >= generation",
        name="generation",
    ),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
    CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="name"),
    UniqueConstraint("namespace_id", "name", name="configurations_name_unique"),
    UniqueConstraint("namespace_id", "id", name="configurations_scope_unique"),
)
Index(
    "configurations_page",
    configurations.c.namespace_id,
    configurations.c.created_at,
    configurations.c.id,
)

configuration_secrets = Table(
    "configuration_secrets",
    metadata,
    identifier("configuration_id"),
    Column("environment", Text(collation="C"), nullable=False),
    identifier("namespace_id"),
    identifier("secret_id"),
    PrimaryKeyConstraint("configuration_id", "environment"),
    ForeignKeyConstraint(
        ["namespace_id", "configuration_id"],
        ["occ.configurations.namespace_id", "occ.configurations.id"],
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["namespace_id", "secret_id"],
        ["occ.secrets.namespace_id", "occ.secrets.id"],
        name="configuration_secrets_secret_fk",
    ),
)
Index("configuration_secrets_secret", configuration_secrets.c.secret_id)

agents = Table(
    "agents",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id"),
    name_column(),
    identifier("configuration_id"),
    Column("execution_mode", Text, nullable=False),
    identifier("service_principal_id"),
    document("harness_auth", None, nullable=True),
    identifier("harness_auth_secret_id", nullable=True),
    identifier("harness_auth_source_id", nullable=True),
    identifier("active_revision_id", nullable=True),
    Column("desired_runtime_state", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default=text("1")),
    created(),
    named(),
    one_of("execution_mode", "embedded", "dedicated"),
    one_of("desired_runtime_state", "stopped", "running"),
    one_of("status", "active", "deleting"),
    CheckConstraint("status <> 'deleting' OR desired_runtime_state = 'stopped'", name="teardown"),
    CheckConstraint("generation BETWEEN 1 AND 9007199254740991", name="generation"),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"]),
    ForeignKeyConstraint(
        ["namespace_id", "configuration_id"],
        ["occ.configurations.namespace_id", "occ.configurations.id"],
        name="agents_configuration_fk",
    ),
    ForeignKeyConstraint(
        ["service_principal_id"], ["occ.iam_identities.id"], deferrable=True, initially="DEFERRED"
    ),
    ForeignKeyConstraint(
        ["namespace_id", "harness_auth_secret_id"],
        ["occ.secrets.namespace_id", "occ.secrets.id"],
        name="agents_harness_secret_fk",
    ),
    ForeignKeyConstraint(
        ["namespace_id", "harness_auth_source_id"],
        ["occ.credential_sources.namespace_id", "occ.credential_sources.id"],
        name="agents_harness_source_fk",
    ),
    ForeignKeyConstraint(
        ["id", "active_revision_id"],
        ["occ.agent_revisions.agent_id", "occ.agent_revisions.id"],
        name="agents_active_revision_fk",
        deferrable=True,
        initially="DEFERRED",
        use_alter=True,
    ),
    UniqueConstraint("namespace_id", "name", name="agents_name_unique"),
    UniqueConstraint("namespace_id", "id", name="agents_scope_unique"),
)
Index("agents_page", agents.c.namespace_id, agents.c.created_at, agents.c.id)

agent_credential_sources = Table(
    "agent_credential_sources",
    metadata,
    identifier("agent_id"),
    Column("position", Integer, nullable=False),
    identifier("namespace_id"),
    identifier("credential_source_id"),
    PrimaryKeyConstraint("agent_id", "position"),
    ForeignKeyConstraint(
        ["namespace_id", "agent_id"],
        ["occ.agents.namespace_id", "occ.agents.id"],
        ondelete="CASCADE",
    ),
    ForeignKeyConstraint(
        ["namespace_id", "credential_source_id"],
        ["occ.credential_sources.namespace_id", "occ.credential_sources.id"],
        name="agent_credential_sources_source_fk",
    ),
    UniqueConstraint("agent_id", "credential_source_id", name="agent_credential_sources_unique"),
    CheckConstraint("position BETWEEN 0 AND 7", name="position"),
)
Index("agent_credential_sources_source", agent_credential_sources.c.credential_source_id)

agent_revisions = Table(
    "agent_revisions",
    metadata,
    identifier(primary_key=True),
    identifier("namespace_id"),
    identifier("agent_id"),
    Column("revision_number", BigInteger, nullable=False),
    document("admitted_spec", None),
    created("admitted_at"),
    # Ours: set once everything this revision could have created was proved gone.
    moment("retired_at"),
    CheckConstraint("revision_number > 0", name="number"),
    CheckConstraint(
        "admitted_spec ?& array['configuration_id','configuration_generation','configuration',"
        "'harness','compute','service_principal_id']",
        name="spec",
    ),
    ForeignKeyConstraint(
        ["namespace_id", "agent_id"],
        ["occ.agents.namespace_id", "occ.agents.id"],
        name="agent_revisions_agent_fk",
    ),
    UniqueConstraint("agent_id", "revision_number", name="agent_revisions_number_unique"),
    UniqueConstraint("agent_id", "id", name="agent_revisions_scope_unique"),
)

revision_references = Table(
    # Ours: what a revision refers to, so that "is this still in use" needs no look into documents.
    "revision_references",
    metadata,
    identifier("revision_id"),
    Column("kind", Text, nullable=False),
    identifier("resource_id"),
    PrimaryKeyConstraint("revision_id", "kind", "resource_id"),
    ForeignKeyConstraint(["revision_id"], ["occ.agent_revisions.id"], ondelete="CASCADE"),
    one_of("kind", "secret", "credential_source"),
)
Index("revision_references_resource", revision_references.c.resource_id)

controller_work = Table(
    "controller_work",
    metadata,
    Column("idempotency_key", Text(collation="C"), primary_key=True),
    Column("work_kind", Text, nullable=False, server_default=text("'lifecycle'")),
    identifier("namespace_id"),
    # No foreign keys on these two: the row of a finished deletion stays as evidence after the Agent is gone.
    identifier("agent_id", nullable=True),
    identifier("revision_id", nullable=True),
    identifier("actor_id"),
    Column("namespace_target", Text),
    Column("agent_target", Text),
    Column("state", Text, nullable=False, server_default=text("'queued'")),
    created("available_at"),
    Column("attempt_count", Integer, nullable=False, server_default=text("0")),
    Column("claim_token", UUID(as_uuid=True)),
    moment("lease_expires_at"),
    moment("completed_at"),
    Column("reason_code", Text),
    document("result_data", None, nullable=True),
    created(),
    created("updated_at"),
    CheckConstraint("char_length(idempotency_key) BETWEEN 1 AND 512", name="key"),
    one_of("work_kind", "lifecycle", "provisioning"),
    one_of("namespace_target", "ready", "deleted"),
    one_of("agent_target", "stopped", "deleted", "credentials_withdrawn"),
    one_of("state", "queued", "claimed", "succeeded", "failed_permanent"),
    CheckConstraint("attempt_count >= 0", name="attempts"),
    CheckConstraint(
        "(state = 'claimed') = (claim_token IS NOT NULL)"
        " AND (claim_token IS NULL) = (lease_expires_at IS NULL)",
        name="claim",
    ),
    CheckConstraint(
        "(state IN ('succeeded', 'failed_permanent')) = (completed_at IS NOT NULL)"
        " AND (completed_at IS NULL) = (reason_code IS NULL)",
        name="terminal",
    ),
    CheckConstraint(
        "reason_code IS NULL OR char_length(reason_code) BETWEEN 1 AND 64", name="reason"
    ),
    CheckConstraint(
        "CASE WHEN agent_id IS NULL"
        " THEN revision_id IS NULL AND agent_target IS NULL"
        " AND (namespace_target IS NOT NULL OR work_kind = 'provisioning')"
        " WHEN revision_id IS NULL"
        " THEN namespace_target IS NULL AND agent_target IS NOT NULL"
        " AND agent_target IN ('stopped', 'deleted')"
        " ELSE namespace_target IS NULL"
        " AND (agent_target IS NULL OR agent_target = 'credentials_withdrawn') END",
        name="shape",
    ),
    ForeignKeyConstraint(["namespace_id"], ["occ.namespaces.id"], ondelete="RESTRICT"),
)
Index(
    "controller_work_ready",
    controller_work.c.available_at,
    controller_work.c.created_at,
    controller_work.c.idempotency_key,
    postgresql_where=controller_work.c.state == text("'queued'"),
)
Index(
    "controller_work_expired",
    controller_work.c.lease_expires_at,
    controller_work.c.idempotency_key,
    postgresql_where=controller_work.c.state == text("'claimed'"),
)
Index(
    "controller_work_lane",
    text("COALESCE(agent_id, namespace_id)"),
    unique=True,
    postgresql_where=controller_work.c.state == text("'claimed'"),
    _table=controller_work,
)
Index("controller_work_agent", controller_work.c.agent_id, controller_work.c.created_at)
Index("controller_work_namespace", controller_work.c.namespace_id, controller_work.c.created_at)

deployment_events = Table(
    # Ours: the steps of a pass as they happen, for the event stream.
    "deployment_events",
    metadata,
    Column("work_key", Text(collation="C"), nullable=False),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    created("at"),
    Column("step", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("code", Text),
    Column("duration_ms", Integer),
    PrimaryKeyConstraint("work_key", "seq"),
    ForeignKeyConstraint(["work_key"], ["occ.controller_work.idempotency_key"]),
    CheckConstraint("char_length(step) BETWEEN 1 AND 64", name="step"),
    one_of("outcome", "started", "succeeded", "pending", "retry", "failed"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    identifier("principal_id"),
    Column("operation", Text, nullable=False),
    identifier("scope"),
    Column("key", Text(collation="C"), nullable=False),
    Column("fingerprint", LargeBinary, nullable=False),
    identifier("resource_id"),
    created(),
    PrimaryKeyConstraint("principal_id", "operation", "scope", "key"),
    CheckConstraint("char_length(key) BETWEEN 1 AND 128", name="key"),
)

audit_events = Table(
    "audit_events",
    metadata,
    identifier(primary_key=True),
    # Ours: a total order within one database, the key of pages.
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    identifier("installation_id"),
    identifier("namespace_id", nullable=True),
    created("occurred_at"),
    Column("kind", Text, nullable=False),
    identifier("actor_id"),
    Column("action", Text, nullable=False),
    Column("resource_kind", Text, nullable=False),
    identifier("resource_id"),
    Column("outcome", Text, nullable=False),
    identifier("request_id", nullable=True),
    Column("reason_code", Text),
    Column("decision_reason", Text),
    document("decision_evidence", None, nullable=True),
    document("details"),
    one_of("kind", "bootstrap", "mutation", "access", "authorization_denial"),
    one_of("outcome", "success", "denied", "failure"),
    CheckConstraint("char_length(reason_code) BETWEEN 1 AND 64", name="reason"),
    CheckConstraint("char_length(decision_reason) <= 120", name="decision"),
    UniqueConstraint("seq", name="audit_events_seq_unique"),
)
Index("audit_events_resource", audit_events.c.resource_id, audit_events.c.seq)
Index("audit_events_namespace", audit_events.c.namespace_id, audit_events.c.seq)
Index(
    "audit_events_work",
    text("(details ->> 'workId')"),
    audit_events.c.occurred_at.desc(),
    audit_events.c.id.desc(),
    postgresql_where=text("kind = 'mutation' AND action = 'reconcile'"),
    _table=audit_events,
)
