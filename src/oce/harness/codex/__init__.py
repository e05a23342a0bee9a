"""The Codex Harness: prepares, proves and supervises ``codex app-server`` inside a Sandbox.

Order: read the environment, write ``config.toml``, log in with the placeholder, prove the model, serve. A failure that a retry cannot
fix is *held*: published on the app-server's port as a small document instead of ending in a crash loop.

Environment (each is a literal of the Sandbox, none is a secret):

=================================  ==================================================================================
``APP_SERVER_PORT``                1024-65535; the app-server or the held document listens on 127.0.0.1 there
``APP_TOKEN_SHA``                  64 lower-case hex: SHA-256 of the transport token. ``APP_SERVER_TOKEN`` is refused
``CODEX_LOGIN_MODE``               ``api_key``; every other mode is a held ``NOT_CONFIGURED``
``OPENAI_API_KEY``                 the placeholder that the egress proxy replaces
``CODEX_HOME``                     absolute, per revision; made 0700
``OPENCLAW_WORKSPACE_DIR``         absolute; the app-server's working directory
``OPENCLAW_HARNESS_MODEL``         the model id that is probed and used
``CODEX_BINARY``                   optional, default ``/opt/oce/codex/bin/codex``
``OPENCLAW_PLUGIN_CODEX_CONFIG_TOML``   path of the ``config.toml`` that Compute rendered
``OPENCLAW_PLUGIN_RUNTIME_MANIFEST``    path of ``runtime.json`` (``kind``, ``openaiBaseUrl``)
``OCE_CODEX_SESSIONS_DIR``         optional, absolute: the Agent's own folder of threads, linked as ``$CODEX_HOME/sessions``
=================================  ==================================================================================

``config.toml`` must carry, for a Sandbox whose egress is fenced: ``[features] plugins = false, apps = false,
api_key_model_discovery = false``; ``[analytics] enabled = false``; ``approval_policy = "never"``; ``sandbox_mode =
"danger-full-access"`` (the Sandbox is the boundary); ``cli_auth_credentials_store = "file"``; and ``openai_base_url`` when it is not the
default. Without them Codex tries hosts that the policy denies and every start is seconds slower.

Threads outlive a revision with the sessions folder alone: Codex 0.163 resumes a thread in a fresh ``CODEX_HOME`` from the rollout
files below ``sessions``; its state databases are rebuilt from them and stay per revision.
"""
