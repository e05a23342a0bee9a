-- Live changes of a revision's network policy (ours).

CREATE TABLE occ.network_policy_applications (
    id TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    revision_id TEXT COLLATE "C" NOT NULL,
    actor_id TEXT COLLATE "C" NOT NULL,
    configuration_id TEXT COLLATE "C" NOT NULL,
    configuration_generation BIGINT NOT NULL,
    snapshot JSONB NOT NULL,
    state TEXT NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    completed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT network_policy_applications_pk PRIMARY KEY (id),
    CONSTRAINT network_policy_applications_state_check CHECK (state IN ('sent', 'confirmed', 'refused', 'superseded')),
    CONSTRAINT network_policy_applications_revision_fk FOREIGN KEY(agent_id, revision_id)
        REFERENCES occ.agent_revisions (agent_id, id) ON DELETE CASCADE
);

CREATE INDEX network_policy_applications_revision ON occ.network_policy_applications (revision_id, requested_at);

-- An application is never removed but with its revision, and only its outcome changes.
GRANT SELECT, INSERT ON occ.network_policy_applications TO occ_app;
GRANT UPDATE (state, completed_at) ON occ.network_policy_applications TO occ_app;
