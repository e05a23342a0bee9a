-- Schema occ as of version 0001. Frozen: later changes are later steps.

CREATE TABLE occ.audit_events (
    id TEXT COLLATE "C" NOT NULL,
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    installation_id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C",
    occurred_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    kind TEXT NOT NULL,
    actor_id TEXT COLLATE "C" NOT NULL,
    action TEXT NOT NULL,
    resource_kind TEXT NOT NULL,
    resource_id TEXT COLLATE "C" NOT NULL,
    outcome TEXT NOT NULL,
    request_id TEXT COLLATE "C",
    reason_code TEXT,
    decision_reason TEXT,
    decision_evidence JSONB,
    details JSONB DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT audit_events_pk PRIMARY KEY (id),
    CONSTRAINT audit_events_kind_check CHECK (kind IN ('bootstrap', 'mutation', 'access', 'authorization_denial')),
    CONSTRAINT audit_events_outcome_check CHECK (outcome IN ('success', 'denied', 'failure')),
    CONSTRAINT audit_events_reason_check CHECK (char_length(reason_code) BETWEEN 1 AND 64),
    CONSTRAINT audit_events_decision_check CHECK (char_length(decision_reason) <= 120),
    CONSTRAINT audit_events_seq_unique UNIQUE (seq)
);

CREATE INDEX audit_events_namespace ON occ.audit_events (namespace_id, seq);

CREATE INDEX audit_events_resource ON occ.audit_events (resource_id, seq);

CREATE INDEX audit_events_work ON occ.audit_events ((details ->> 'workId'), occurred_at DESC, id DESC) WHERE kind = 'mutation' AND action = 'reconcile';

CREATE TABLE occ.iam_restrictions (
    id TEXT COLLATE "C" NOT NULL,
    action TEXT NOT NULL,
    resource_kind TEXT NOT NULL,
    namespace_id TEXT COLLATE "C",
    resource_id TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT iam_restrictions_pk PRIMARY KEY (id)
);

CREATE INDEX iam_restrictions_rule ON occ.iam_restrictions (resource_kind, action);

CREATE TABLE occ.idempotency_keys (
    principal_id TEXT COLLATE "C" NOT NULL,
    operation TEXT NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    fingerprint BYTEA NOT NULL,
    resource_id TEXT COLLATE "C" NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT idempotency_keys_pk PRIMARY KEY (principal_id, operation, scope, key),
    CONSTRAINT idempotency_keys_key_check CHECK (char_length(key) BETWEEN 1 AND 128)
);

CREATE TABLE occ.installation (
    id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT installation_pk PRIMARY KEY (id),
    CONSTRAINT installation_name_check CHECK (char_length(name) BETWEEN 1 AND 200)
);

CREATE UNIQUE INDEX installation_singleton ON occ.installation ((true));

CREATE TABLE occ.namespaces (
    id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    existing_namespace TEXT COLLATE "C",
    status TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    deleted_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT namespaces_pk PRIMARY KEY (id),
    CONSTRAINT namespaces_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT namespaces_status_check CHECK (status IN ('provisioning', 'ready', 'failed', 'deleting')),
    CONSTRAINT namespaces_tombstone_check CHECK (deleted_at IS NULL OR status = 'deleting'),
    CONSTRAINT namespaces_name_unique UNIQUE (name)
);

CREATE UNIQUE INDEX namespaces_existing_unique ON occ.namespaces (existing_namespace) WHERE deleted_at IS NULL;

CREATE INDEX namespaces_page ON occ.namespaces (created_at, id);

CREATE TABLE occ.configurations (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C",
    kind TEXT NOT NULL,
    generation BIGINT NOT NULL,
    reserved_generation BIGINT NOT NULL,
    state TEXT NOT NULL,
    secret_bindings JSONB DEFAULT '{}'::jsonb NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT configurations_pk PRIMARY KEY (id),
    CONSTRAINT configurations_kind_check CHECK (kind IN ('agent')),
    CONSTRAINT configurations_state_check CHECK (state IN ('writing', 'ready', 'deleting')),
    CONSTRAINT configurations_generation_check CHECK (generation BETWEEN 1 AND 9007199254740991 AND reserved_generation >= generation),
    CONSTRAINT configurations_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id),
    CONSTRAINT configurations_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT configurations_name_unique UNIQUE (namespace_id, name),
    CONSTRAINT configurations_scope_unique UNIQUE (namespace_id, id)
);

CREATE INDEX configurations_page ON occ.configurations (namespace_id, created_at, id);

CREATE TABLE occ.controller_work (
    idempotency_key TEXT COLLATE "C" NOT NULL,
    work_kind TEXT DEFAULT 'lifecycle' NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C",
    revision_id TEXT COLLATE "C",
    actor_id TEXT COLLATE "C" NOT NULL,
    namespace_target TEXT,
    agent_target TEXT,
    state TEXT DEFAULT 'queued' NOT NULL,
    available_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    attempt_count INTEGER DEFAULT 0 NOT NULL,
    claim_token UUID,
    lease_expires_at TIMESTAMP WITH TIME ZONE,
    completed_at TIMESTAMP WITH TIME ZONE,
    reason_code TEXT,
    result_data JSONB,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT controller_work_pk PRIMARY KEY (idempotency_key),
    CONSTRAINT controller_work_key_check CHECK (char_length(idempotency_key) BETWEEN 1 AND 512),
    CONSTRAINT controller_work_work_kind_check CHECK (work_kind IN ('lifecycle', 'provisioning')),
    CONSTRAINT controller_work_namespace_target_check CHECK (namespace_target IN ('ready', 'deleted')),
    CONSTRAINT controller_work_agent_target_check CHECK (agent_target IN ('stopped', 'deleted', 'credentials_withdrawn')),
    CONSTRAINT controller_work_state_check CHECK (state IN ('queued', 'claimed', 'succeeded', 'failed_permanent')),
    CONSTRAINT controller_work_attempts_check CHECK (attempt_count >= 0),
    CONSTRAINT controller_work_claim_check CHECK ((state = 'claimed') = (claim_token IS NOT NULL) AND (claim_token IS NULL) = (lease_expires_at IS NULL)),
    CONSTRAINT controller_work_terminal_check CHECK ((state IN ('succeeded', 'failed_permanent')) = (completed_at IS NOT NULL) AND (completed_at IS NULL) = (reason_code IS NULL)),
    CONSTRAINT controller_work_reason_check CHECK (reason_code IS NULL OR char_length(reason_code) BETWEEN 1 AND 64),
    CONSTRAINT controller_work_shape_check CHECK (CASE WHEN agent_id IS NULL THEN revision_id IS NULL AND agent_target IS NULL AND (namespace_target IS NOT NULL OR work_kind = 'provisioning') WHEN revision_id IS NULL THEN namespace_target IS NULL AND agent_target IS NOT NULL AND agent_target IN ('stopped', 'deleted') ELSE namespace_target IS NULL AND (agent_target IS NULL OR agent_target = 'credentials_withdrawn') END),
    CONSTRAINT controller_work_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id) ON DELETE RESTRICT
);

CREATE INDEX controller_work_agent ON occ.controller_work (agent_id, created_at);

CREATE INDEX controller_work_expired ON occ.controller_work (lease_expires_at, idempotency_key) WHERE state = 'claimed';

CREATE UNIQUE INDEX controller_work_lane ON occ.controller_work (COALESCE(agent_id, namespace_id)) WHERE state = 'claimed';

CREATE INDEX controller_work_namespace ON occ.controller_work (namespace_id, created_at);

CREATE INDEX controller_work_ready ON occ.controller_work (available_at, created_at, idempotency_key) WHERE state = 'queued';

CREATE TABLE occ.credential_sources (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    type TEXT NOT NULL,
    config JSONB DEFAULT '{}'::jsonb NOT NULL,
    driver_id TEXT COLLATE "C" NOT NULL,
    state TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    effect_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT credential_sources_pk PRIMARY KEY (id),
    CONSTRAINT credential_sources_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT credential_sources_state_check CHECK (state IN ('registering', 'ready', 'deleting')),
    CONSTRAINT credential_sources_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id),
    CONSTRAINT credential_sources_name_unique UNIQUE (namespace_id, name),
    CONSTRAINT credential_sources_scope_unique UNIQUE (namespace_id, id)
);

CREATE INDEX credential_sources_page ON occ.credential_sources (namespace_id, created_at, id);

CREATE TABLE occ.iam_groups (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C",
    CONSTRAINT iam_groups_pk PRIMARY KEY (id),
    CONSTRAINT iam_groups_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id)
);

CREATE TABLE occ.iam_identities (
    id TEXT COLLATE "C" NOT NULL,
    kind TEXT NOT NULL,
    namespace_id TEXT COLLATE "C",
    agent_id TEXT COLLATE "C",
    issuer TEXT,
    subject TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT iam_identities_pk PRIMARY KEY (id),
    CONSTRAINT iam_identities_kind_check CHECK (kind IN ('principal', 'service_principal')),
    CONSTRAINT iam_identities_subject_check CHECK ((kind = 'principal') = (issuer IS NOT NULL AND subject IS NOT NULL)),
    CONSTRAINT iam_identities_owner_check CHECK (agent_id IS NULL OR (kind = 'service_principal' AND namespace_id IS NOT NULL)),
    CONSTRAINT iam_identities_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id),
    CONSTRAINT iam_identities_agent_unique UNIQUE (agent_id),
    CONSTRAINT iam_identities_subject_unique UNIQUE (issuer, subject)
);

CREATE INDEX iam_identities_page ON occ.iam_identities (namespace_id, created_at);

CREATE TABLE occ.iam_roles (
    id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C",
    namespace_id TEXT COLLATE "C",
    permissions JSONB DEFAULT '[]'::jsonb NOT NULL,
    built_in BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT iam_roles_pk PRIMARY KEY (id),
    CONSTRAINT iam_roles_name_check CHECK (name IS NULL OR char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT iam_roles_permissions_check CHECK (jsonb_typeof(permissions) = 'array'),
    CONSTRAINT iam_roles_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id)
);

CREATE TABLE occ.secrets (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    driver_id TEXT COLLATE "C" NOT NULL,
    state TEXT NOT NULL,
    backend_namespace_name TEXT COLLATE "C",
    backend_name TEXT COLLATE "C",
    backend_key TEXT COLLATE "C",
    backend_uid TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT secrets_pk PRIMARY KEY (id),
    CONSTRAINT secrets_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT secrets_state_check CHECK (state IN ('writing', 'ready', 'deleting')),
    CONSTRAINT secrets_locator_check CHECK (state <> 'ready' OR (backend_namespace_name IS NOT NULL AND backend_name IS NOT NULL AND backend_key IS NOT NULL AND backend_uid IS NOT NULL)),
    CONSTRAINT secrets_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id),
    CONSTRAINT secrets_name_unique UNIQUE (namespace_id, name),
    CONSTRAINT secrets_scope_unique UNIQUE (namespace_id, id)
);

CREATE INDEX secrets_page ON occ.secrets (namespace_id, created_at, id);

CREATE TABLE occ.agents (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    configuration_id TEXT COLLATE "C" NOT NULL,
    execution_mode TEXT NOT NULL,
    service_principal_id TEXT COLLATE "C" NOT NULL,
    harness_auth JSONB,
    harness_auth_secret_id TEXT COLLATE "C",
    harness_auth_source_id TEXT COLLATE "C",
    active_revision_id TEXT COLLATE "C",
    desired_runtime_state TEXT NOT NULL,
    status TEXT NOT NULL,
    generation BIGINT DEFAULT 1 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT agents_pk PRIMARY KEY (id),
    CONSTRAINT agents_name_check CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT agents_execution_mode_check CHECK (execution_mode IN ('embedded', 'dedicated')),
    CONSTRAINT agents_desired_runtime_state_check CHECK (desired_runtime_state IN ('stopped', 'running')),
    CONSTRAINT agents_status_check CHECK (status IN ('active', 'deleting')),
    CONSTRAINT agents_teardown_check CHECK (status <> 'deleting' OR desired_runtime_state = 'stopped'),
    CONSTRAINT agents_generation_check CHECK (generation BETWEEN 1 AND 9007199254740991),
    CONSTRAINT agents_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id),
    CONSTRAINT agents_configuration_fk FOREIGN KEY(namespace_id, configuration_id) REFERENCES occ.configurations (namespace_id, id),
    CONSTRAINT agents_service_principal_id_fk FOREIGN KEY(service_principal_id) REFERENCES occ.iam_identities (id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT agents_harness_secret_fk FOREIGN KEY(namespace_id, harness_auth_secret_id) REFERENCES occ.secrets (namespace_id, id),
    CONSTRAINT agents_harness_source_fk FOREIGN KEY(namespace_id, harness_auth_source_id) REFERENCES occ.credential_sources (namespace_id, id),
    CONSTRAINT agents_name_unique UNIQUE (namespace_id, name),
    CONSTRAINT agents_scope_unique UNIQUE (namespace_id, id)
);

CREATE INDEX agents_page ON occ.agents (namespace_id, created_at, id);

CREATE TABLE occ.configuration_secrets (
    configuration_id TEXT COLLATE "C" NOT NULL,
    environment TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    secret_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT configuration_secrets_pk PRIMARY KEY (configuration_id, environment),
    CONSTRAINT configuration_secrets_namespace_id_fk FOREIGN KEY(namespace_id, configuration_id) REFERENCES occ.configurations (namespace_id, id) ON DELETE CASCADE,
    CONSTRAINT configuration_secrets_secret_fk FOREIGN KEY(namespace_id, secret_id) REFERENCES occ.secrets (namespace_id, id)
);

CREATE INDEX configuration_secrets_secret ON occ.configuration_secrets (secret_id);

CREATE TABLE occ.credential_source_secrets (
    credential_source_id TEXT COLLATE "C" NOT NULL,
    field TEXT NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    secret_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT credential_source_secrets_pk PRIMARY KEY (credential_source_id, field),
    CONSTRAINT credential_source_secrets_namespace_id_fk FOREIGN KEY(namespace_id, credential_source_id) REFERENCES occ.credential_sources (namespace_id, id) ON DELETE CASCADE,
    CONSTRAINT credential_source_secrets_secret_fk FOREIGN KEY(namespace_id, secret_id) REFERENCES occ.secrets (namespace_id, id)
);

CREATE INDEX credential_source_secrets_secret ON occ.credential_source_secrets (secret_id);

CREATE TABLE occ.deployment_events (
    work_key TEXT COLLATE "C" NOT NULL,
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    step TEXT NOT NULL,
    outcome TEXT NOT NULL,
    code TEXT,
    duration_ms INTEGER,
    CONSTRAINT deployment_events_pk PRIMARY KEY (work_key, seq),
    CONSTRAINT deployment_events_work_key_fk FOREIGN KEY(work_key) REFERENCES occ.controller_work (idempotency_key),
    CONSTRAINT deployment_events_step_check CHECK (char_length(step) BETWEEN 1 AND 64),
    CONSTRAINT deployment_events_outcome_check CHECK (outcome IN ('started', 'succeeded', 'pending', 'retry', 'failed'))
);

CREATE TABLE occ.iam_access_bindings (
    id TEXT COLLATE "C" NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id TEXT COLLATE "C" NOT NULL,
    role_id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C",
    resource_kind TEXT,
    resource_id TEXT COLLATE "C",
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT iam_access_bindings_pk PRIMARY KEY (id),
    CONSTRAINT iam_access_bindings_subject_kind_check CHECK (subject_kind IN ('identity', 'group')),
    CONSTRAINT iam_access_bindings_target_check CHECK ((resource_kind IS NULL) = (resource_id IS NULL)),
    CONSTRAINT iam_access_bindings_role_id_fk FOREIGN KEY(role_id) REFERENCES occ.iam_roles (id),
    CONSTRAINT iam_access_bindings_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id)
);

CREATE INDEX iam_access_bindings_subject ON occ.iam_access_bindings (subject_id);

CREATE INDEX iam_access_bindings_target ON occ.iam_access_bindings (resource_kind, resource_id);

CREATE TABLE occ.iam_group_memberships (
    group_id TEXT COLLATE "C" NOT NULL,
    identity_id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C",
    CONSTRAINT iam_group_memberships_pk PRIMARY KEY (group_id, identity_id),
    CONSTRAINT iam_group_memberships_group_id_fk FOREIGN KEY(group_id) REFERENCES occ.iam_groups (id) ON DELETE CASCADE,
    CONSTRAINT iam_group_memberships_identity_id_fk FOREIGN KEY(identity_id) REFERENCES occ.iam_identities (id) ON DELETE CASCADE
);

CREATE TABLE occ.service_keys (
    id TEXT COLLATE "C" NOT NULL,
    service_principal_id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C",
    name TEXT COLLATE "C" NOT NULL,
    secret_sha256 BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_used_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT service_keys_pk PRIMARY KEY (id),
    CONSTRAINT service_keys_name_check CHECK (char_length(name) BETWEEN 1 AND 32),
    CONSTRAINT service_keys_secret_check CHECK (octet_length(secret_sha256) = 32),
    CONSTRAINT service_keys_service_principal_id_fk FOREIGN KEY(service_principal_id) REFERENCES occ.iam_identities (id) ON DELETE CASCADE,
    CONSTRAINT service_keys_namespace_id_fk FOREIGN KEY(namespace_id) REFERENCES occ.namespaces (id)
);

CREATE INDEX service_keys_page ON occ.service_keys (created_at, id);

CREATE TABLE occ.agent_credential_sources (
    agent_id TEXT COLLATE "C" NOT NULL,
    position INTEGER NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    credential_source_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT agent_credential_sources_pk PRIMARY KEY (agent_id, position),
    CONSTRAINT agent_credential_sources_namespace_id_fk FOREIGN KEY(namespace_id, agent_id) REFERENCES occ.agents (namespace_id, id) ON DELETE CASCADE,
    CONSTRAINT agent_credential_sources_source_fk FOREIGN KEY(namespace_id, credential_source_id) REFERENCES occ.credential_sources (namespace_id, id),
    CONSTRAINT agent_credential_sources_unique UNIQUE (agent_id, credential_source_id),
    CONSTRAINT agent_credential_sources_position_check CHECK (position BETWEEN 0 AND 7)
);

CREATE INDEX agent_credential_sources_source ON occ.agent_credential_sources (credential_source_id);

CREATE TABLE occ.agent_revisions (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    revision_number BIGINT NOT NULL,
    admitted_spec JSONB NOT NULL,
    admitted_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    retired_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT agent_revisions_pk PRIMARY KEY (id),
    CONSTRAINT agent_revisions_number_check CHECK (revision_number > 0),
    CONSTRAINT agent_revisions_spec_check CHECK (admitted_spec ?& array['configuration_id','configuration_generation','configuration','harness','compute','service_principal_id']),
    CONSTRAINT agent_revisions_agent_fk FOREIGN KEY(namespace_id, agent_id) REFERENCES occ.agents (namespace_id, id),
    CONSTRAINT agent_revisions_number_unique UNIQUE (agent_id, revision_number),
    CONSTRAINT agent_revisions_scope_unique UNIQUE (agent_id, id)
);

CREATE TABLE occ.revision_references (
    revision_id TEXT COLLATE "C" NOT NULL,
    kind TEXT NOT NULL,
    resource_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT revision_references_pk PRIMARY KEY (revision_id, kind, resource_id),
    CONSTRAINT revision_references_revision_id_fk FOREIGN KEY(revision_id) REFERENCES occ.agent_revisions (id) ON DELETE CASCADE,
    CONSTRAINT revision_references_kind_check CHECK (kind IN ('secret', 'credential_source'))
);

CREATE INDEX revision_references_resource ON occ.revision_references (resource_id);

ALTER TABLE occ.iam_identities ADD CONSTRAINT iam_identities_agent_id_fk FOREIGN KEY(agent_id) REFERENCES occ.agents (id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE occ.agents ADD CONSTRAINT agents_active_revision_fk FOREIGN KEY(id, active_revision_id) REFERENCES occ.agent_revisions (agent_id, id) DEFERRABLE INITIALLY DEFERRED;

-- Revisions that still matter to "is this in use": the active one of an Agent and those whose work is not finished.
CREATE VIEW occ.revisions_in_use AS
    SELECT r.id, r.namespace_id, r.agent_id FROM occ.agent_revisions r
    WHERE r.retired_at IS NULL AND (
        EXISTS (SELECT 1 FROM occ.agents a WHERE a.active_revision_id = r.id)
        OR EXISTS (SELECT 1 FROM occ.controller_work w
            WHERE w.agent_id = r.agent_id AND w.revision_id = r.id AND w.state IN ('queued', 'claimed')));

-- The only way an Agent row goes: its deletion work must be claimed under this live token, and every revision proved gone.
CREATE FUNCTION occ.finalize_agent_deletion(p_namespace text, p_agent text, p_key text, p_token uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    principal text;
BEGIN
    PERFORM 1 FROM occ.namespaces WHERE id = p_namespace FOR SHARE;
    SELECT service_principal_id INTO principal FROM occ.agents
        WHERE id = p_agent AND namespace_id = p_namespace AND status = 'deleting' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM occ.controller_work
        WHERE idempotency_key = p_key AND namespace_id = p_namespace AND agent_id = p_agent AND agent_target = 'deleted'
            AND state = 'claimed' AND claim_token = p_token AND lease_expires_at > clock_timestamp()
        FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM occ.agent_revisions WHERE agent_id = p_agent AND retired_at IS NULL) THEN
        RETURN NULL;
    END IF;
    DELETE FROM occ.iam_access_bindings WHERE subject_kind = 'identity' AND subject_id = principal;
    DELETE FROM occ.iam_access_bindings WHERE resource_id = p_agent
        OR resource_id IN (SELECT id FROM occ.agent_revisions WHERE agent_id = p_agent);
    DELETE FROM occ.iam_restrictions WHERE resource_id = p_agent
        OR resource_id IN (SELECT id FROM occ.agent_revisions WHERE agent_id = p_agent);
    UPDATE occ.agents SET active_revision_id = NULL WHERE id = p_agent;
    DELETE FROM occ.agent_revisions WHERE agent_id = p_agent;
    DELETE FROM occ.agents WHERE id = p_agent;
    DELETE FROM occ.iam_identities WHERE id = principal;
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION occ.finalize_agent_deletion(text, text, text, uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION occ.finalize_agent_deletion(text, text, text, uuid) TO occ_app;

-- Built-in roles (ours): their permissions come with the program, so that new actions reach them without a migration.
INSERT INTO occ.iam_roles (id, name, built_in) VALUES
    ('role_administrator', 'administrator', true),
    ('role_operator', 'operator', true),
    ('role_deployer', 'deployer', true),
    ('role_viewer', 'viewer', true),
    ('role_agent_reference', 'agent-reference', true);

-- The application role: no DDL, no DELETE of Namespaces, Agents, revisions, identities, work or audit, no change of audit.
GRANT USAGE ON SCHEMA occ TO occ_app;
GRANT SELECT ON ALL TABLES IN SCHEMA occ TO occ_app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA occ TO occ_app;
GRANT INSERT ON ALL TABLES IN SCHEMA occ TO occ_app;
REVOKE INSERT ON occ.alembic_version FROM occ_app;
GRANT UPDATE (status, deleted_at) ON occ.namespaces TO occ_app;
GRANT UPDATE (configuration_id, execution_mode, harness_auth, harness_auth_secret_id, harness_auth_source_id,
    active_revision_id, desired_runtime_state, status, generation) ON occ.agents TO occ_app;
GRANT UPDATE (retired_at) ON occ.agent_revisions TO occ_app;
GRANT UPDATE (state, available_at, attempt_count, claim_token, lease_expires_at, completed_at, reason_code, result_data,
    updated_at) ON occ.controller_work TO occ_app;
GRANT UPDATE (state, backend_namespace_name, backend_name, backend_key, backend_uid) ON occ.secrets TO occ_app;
GRANT UPDATE (state, effect_at) ON occ.credential_sources TO occ_app;
GRANT UPDATE (secret_id) ON occ.credential_source_secrets TO occ_app;
GRANT UPDATE (generation, reserved_generation, state, secret_bindings) ON occ.configurations TO occ_app;
GRANT UPDATE (last_used_at) ON occ.service_keys TO occ_app;
GRANT DELETE ON occ.secrets, occ.credential_sources, occ.credential_source_secrets, occ.configurations,
    occ.configuration_secrets, occ.agent_credential_sources, occ.service_keys, occ.iam_roles, occ.iam_access_bindings,
    occ.iam_restrictions, occ.iam_groups, occ.iam_group_memberships, occ.idempotency_keys TO occ_app;
