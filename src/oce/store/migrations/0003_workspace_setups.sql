-- Initial workspace files of Agents (ours).

CREATE TABLE occ.workspace_setups (
    id TEXT COLLATE "C" NOT NULL,
    namespace_id TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    files JSONB,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    completed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT workspace_setups_pk PRIMARY KEY (id),
    CONSTRAINT workspace_setups_content_check CHECK ((files IS NULL) = (completed_at IS NOT NULL)),
    CONSTRAINT workspace_setups_agent_unique UNIQUE (agent_id),
    CONSTRAINT workspace_setups_agent_fk FOREIGN KEY(namespace_id, agent_id)
        REFERENCES occ.agents (namespace_id, id) ON DELETE CASCADE
);

-- A setup is never removed but with its Agent, and all that happens to it is that its content goes.
GRANT SELECT, INSERT ON occ.workspace_setups TO occ_app;
GRANT UPDATE (files, completed_at) ON occ.workspace_setups TO occ_app;
