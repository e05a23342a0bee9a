"""The worker's environment."""

from pathlib import Path

import pytest

from oce.worker.settings import Listen, WorkerSettings, WorkerSettingsRefused, from_environment

REQUIRED = {"OCC_DATABASE_URL": "postgresql://occ_app@/occ", "OCC_CONFIG_PATH": "/etc/occ.yaml"}


def test_defaults_are_the_documented_ones():
    found = from_environment(REQUIRED)
    assert found.worker == WorkerSettings()
    assert (found.worker.poll, found.worker.lease, found.worker.max_attempts) == (0.25, 5.0, 5)
    assert (found.config_path, found.metrics) == (Path("/etc/occ.yaml"), None)


def test_everything_can_be_set():
    found = from_environment(
        REQUIRED
        | {
            "OCC_WORKER_LEASE_DURATION_MS": "1500",
            "OCC_WORKER_LIVENESS_PATH": "/run/alive",
            "OCC_METRICS_ENABLED": "true",
            "OCC_METRICS_PORT": "9465",
        }
    )
    assert (found.worker.lease, found.worker.sweep) == (1.5, 0.3)
    assert found.worker.liveness_path == Path("/run/alive")
    assert found.metrics == Listen(host="127.0.0.1", port=9465)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"OCC_DATABASE_URL": ""}, "OCC_DATABASE_URL"),
        ({"OCC_CONFIG_PATH": "relative"}, "OCC_CONFIG_PATH"),
        ({"OCC_WORKER_LEASE_DURATION_MS": "0"}, "OCC_WORKER_LEASE_DURATION_MS"),
        ({"OCC_WORKER_LANES": "many"}, "OCC_WORKER_LANES"),
        ({"OCC_WORKER_MAX_ATTEMPTS": "²"}, "OCC_WORKER_MAX_ATTEMPTS"),
        ({"OCC_METRICS_PORT": "9465"}, "OCC_METRICS_PORT"),
        ({"OCC_METRICS_ENABLED": "true"}, "OCC_METRICS_PORT"),
        ({"OCC_LOG_LEVEL": "loud"}, "OCC_LOG_LEVEL"),
    ],
)
def test_a_refusal_names_the_variable_and_not_its_value(change, named):
    with pytest.raises(WorkerSettingsRefused, match=named) as refused:
        from_environment(REQUIRED | change)
    assert "relative" not in str(refused.value)
    assert "loud" not in str(refused.value)
