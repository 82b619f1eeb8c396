"""Hosts of pip's effective configuration, as pip itself determines it."""

from __future__ import annotations

import asyncio
import os
import zipfile

import pytest

from democrai_sandbox.errors import InstallFailed
from democrai_sandbox.runtime.installs import pip
from democrai_sandbox.runtime.installs import pip as pip_module
from democrai_sandbox.runtime.installs.pip import (
    PipConfiguration,
    find_pip,
    package_rules,
    pip_variables,
    read_configuration,
)
from tests.runtime.installs import packages
from tests.runtime.installs.starting import Starter


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    """Remove the configuration of pip, certificates and proxies."""
    for name in [*os.environ]:
        if name.startswith(("PIP_", "SSL_", "REQUESTS_", "CURL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def configured(monkeypatch, tmp_path, prepared_tools):
    """Read pip's configuration, which contains only the given settings."""

    def read(text="", **variables):
        file = tmp_path / "pip.conf"
        file.write_text(text)
        monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return asyncio.run(read_configuration(Starter(), find_pip(prepared_tools)))

    return read


def made(**more):
    """Return a configuration as pip reports it."""
    default = {
        "version": "24.0",
        "index_url": "https://index.test/simple",
        "default_index": "https://index.test/simple",
    }
    return PipConfiguration(**{**default, "default_files": "https://files.test", **more})


def told(configuration):
    return {(rule.operation.value, rule.normalized_target) for rule in package_rules(configuration)}


def test_the_default_index_comes_with_the_host_of_its_files():
    """Two hosts, receive only, with fixed scheme and port."""
    assert told(made()) == {("receive", "https://index.test"), ("receive", "https://files.test")}


def test_another_index_stands_alone():
    """The targets of its links are not known in advance; an administrator names trusted hosts."""
    configuration = made(index_url="https://own.test:8443/root/simple", trusted_hosts=("mirror.test:81",))
    assert told(configuration) == {
        ("receive", "https://own.test:8443"),
        ("receive", "https://mirror.test:81"),
        ("receive", "http://mirror.test:81"),
    }


def test_a_password_in_a_url_is_no_part_of_a_rule():
    """It goes to pip, which sends it only to that host."""
    configuration = made(index_url="https://me:secret@own.test/simple")
    assert told(configuration) == {("receive", "https://own.test")}
    assert "secret" in pip_variables(configuration)["PIP_INDEX_URL"]


def test_without_an_index_there_are_no_hosts():
    """``no-index`` leaves the local folders, which may be read, also with spaces in their names."""
    configuration = made(no_index=True, find_links=("/srv/my wheels",))
    assert told(configuration) == {("read", "/srv/my wheels")}
    assert pip_variables(configuration)["PIP_FIND_LINKS"] == "file:///srv/my%20wheels"


def test_a_local_index_is_read_with_the_files_beside_it():
    """Unless that would be a top-level folder, which may contain anything."""
    assert ("read", "/srv/index") in told(made(extra_index_urls=("file:///srv/index/simple",)))
    assert ("read", "/srv/simple") in told(made(extra_index_urls=("file:///srv/simple",)))


def test_a_proxy_may_be_gone_through(monkeypatch):
    """From pip's option or the environment; used only for permitted requests."""
    monkeypatch.setattr(
        pip, "host_environment", lambda: {"https_proxy": "http://out.test:3128", "no_proxy": "inner.test"}
    )
    configuration = made(proxy="me:pw@other.test:8080")
    assert {("connect", "http://out.test:3128"), ("connect", "http://other.test:8080")} <= told(configuration)
    assert pip_variables(configuration)["no_proxy"] == "inner.test"


def test_a_place_that_pip_cannot_use_is_an_error():
    """Other schemes are not guessed."""
    with pytest.raises(InstallFailed, match="ftp"):
        package_rules(made(index_url="ftp://own.test/simple"))


def test_pip_reads_its_files_and_variables_by_its_own_rules(configured):
    """The section of a command takes precedence over the global one, a variable over both."""
    found = configured(
        "[global]\nindex-url = https://one.test/simple\ntimeout = 7\n"
        "[install]\nindex-url = https://two.test/simple\ntarget = /elsewhere\n",
        PIP_EXTRA_INDEX_URL="https://three.test/a https://four.test/b",
    )
    assert found.index_url == "https://two.test/simple"
    assert found.extra_index_urls == ("https://three.test/a", "https://four.test/b")
    assert found.timeout == 7
    assert not {"PIP_TARGET", "PIP_PREFIX", "PIP_USER"} & set(pip_variables(found))


def test_without_configuration_pip_names_its_own_default(configured):
    """The default index and its file host are those built into this pip."""
    found = configured()
    assert found.index_url == found.default_index
    assert len(package_rules(found)) >= 2
    assert all(rule.normalized_target.startswith(("https://", "/")) for rule in package_rules(found))


def test_a_broken_configuration_is_an_error_not_an_empty_one(configured):
    """A configuration that pip cannot read stops the installation."""
    with pytest.raises(InstallFailed, match="configuration"):
        configured("no section = here\n[")


def test_pip_comes_with_the_interpreter_where_the_host_has_none(monkeypatch, tmp_path):
    """The archive is unpacked and compiled once. A small one replaces it here, because compiling pip takes seconds."""
    monkeypatch.setattr(pip_module.importlib.util, "find_spec", lambda name: None)
    bundled = pip_module._bundled()[0]
    assert "pip/__init__.py" in zipfile.ZipFile(bundled).namelist()
    small = packages.wheel(tmp_path / "bundled", "pip", "1.0", extra={"pip/__init__.py": "__version__ = '1.0'\n"})
    monkeypatch.setattr(pip_module, "_bundled", lambda: [small, bundled])
    tools = tmp_path / "tools"
    found = find_pip(tools)
    assert found == tools / small.stem / "pip"
    assert (found / "__init__.py").read_text() == "__version__ = '1.0'\n"
    assert list(found.rglob("*.pyc"))
    assert find_pip(tools) == found
    assert [entry.name for entry in tools.iterdir()] == [found.parent.name]


def test_pip_stands_alone(prepared_tools):
    """Packages beside it in the host's environment are not beside the copy."""
    found = find_pip(prepared_tools)
    assert found.is_relative_to(prepared_tools)
    assert [entry.name for entry in found.parent.iterdir()] == ["pip"]
    assert list(found.rglob("*.pyc"))
    assert find_pip(prepared_tools) == found
