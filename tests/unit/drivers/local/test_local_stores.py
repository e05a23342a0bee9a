"""Secret and Configuration Drivers of one machine."""

import dataclasses
import shutil
import stat

import pytest

from oce.contracts.refusals import NotVisible, OwnershipConflict
from oce.contracts.sandbox import PhysicalNamespace
from oce.domain.secret import SecretText
from oce.drivers.local.configuration import LocalConfigurationDriver
from oce.drivers.local.files import remove_tree
from oce.drivers.local.secrets import LocalSecretDriver, SecretStoreError

NAMESPACE = PhysicalNamespace(id="ns_1", name="oce-aaa")


def everything_below(directory):
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def test_value_is_encrypted_private_and_resolvable_by_another_process(
    tmp_path, secret_driver
):
    locator = await secret_driver.create(NAMESPACE, "sec_1", SecretText("sk-planted-value"))
    assert b"planted" not in everything_below(tmp_path)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.is_dir()
    again = LocalSecretDriver(tmp_path / "secrets", tmp_path / "keys" / "secret.key")
    assert (await again.resolve(locator)).reveal() == "sk-planted-value"


async def test_repeated_create_keeps_the_locator_and_replaces_the_value(secret_driver):
    first = await secret_driver.create(NAMESPACE, "sec_1", SecretText("one"))
    second = await secret_driver.create(NAMESPACE, "sec_1", SecretText("two"))
    assert first == second
    assert (await secret_driver.resolve(first)).reveal() == "two"


async def test_update_and_delete_ask_for_the_same_object(secret_driver):
    locator = await secret_driver.create(NAMESPACE, "sec_1", SecretText("one"))
    stale = dataclasses.replace(locator, uid="another")
    with pytest.raises(NotVisible):
        await secret_driver.update(stale, SecretText("two"))
    await secret_driver.delete(stale)
    await secret_driver.update(locator, SecretText("three"))
    assert (await secret_driver.resolve(locator)).reveal() == "three"
    await secret_driver.delete(locator)
    await secret_driver.delete(locator)
    with pytest.raises(NotVisible):
        await secret_driver.resolve(locator)


async def test_a_file_copied_over_another_one_does_not_decrypt(tmp_path, secret_driver):
    mine = await secret_driver.create(NAMESPACE, "sec_1", SecretText("mine"))
    other = await secret_driver.create(NAMESPACE, "sec_2", SecretText("other"))
    folder = tmp_path / "secrets" / "oce-aaa"
    shutil.copy(folder / f"{other.name}.json", folder / f"{mine.name}.json")
    with pytest.raises(NotVisible):
        await secret_driver.resolve(mine)
    moved = dataclasses.replace(mine, uid=other.uid)
    with pytest.raises(SecretStoreError):
        await secret_driver.resolve(moved)


async def test_a_readable_key_file_and_a_foreign_path_are_refused(tmp_path, secret_driver):
    locator = await secret_driver.create(NAMESPACE, "sec_1", SecretText("one"))
    with pytest.raises(NotVisible):
        await secret_driver.resolve(dataclasses.replace(locator, name="../../keys/secret"))
    (tmp_path / "keys" / "secret.key").chmod(0o644)
    again = LocalSecretDriver(tmp_path / "secrets", tmp_path / "keys" / "secret.key")
    with pytest.raises(SecretStoreError, match=r"chmod 600"):
        await again.resolve(locator)


async def test_configuration_generations_are_immutable(tmp_path):
    driver = LocalConfigurationDriver(tmp_path / "configurations")
    await driver.write(NAMESPACE, "cfg_1", 1, {"a": 1})
    await driver.write(NAMESPACE, "cfg_1", 1, {"a": 1})
    await driver.write(NAMESPACE, "cfg_1", 2, {"a": 2})
    with pytest.raises(OwnershipConflict):
        await driver.write(NAMESPACE, "cfg_1", 1, {"a": 3})
    assert await driver.read(NAMESPACE, "cfg_1", 1) == {"a": 1}
    await driver.delete(NAMESPACE, "cfg_1")
    await driver.delete(NAMESPACE, "cfg_1")
    with pytest.raises(NotVisible):
        await driver.read(NAMESPACE, "cfg_1", 2)


def test_a_tree_whose_owner_took_permissions_away_is_removed(tmp_path):
    inner = tmp_path / "agent" / "locked" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    (tmp_path / "agent" / "link").symlink_to(tmp_path)
    inner.chmod(0)
    inner.parent.chmod(0o500)
    remove_tree(tmp_path / "agent")
    assert list(tmp_path.iterdir()) == []
