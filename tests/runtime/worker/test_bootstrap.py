"""The interpreter of a worker is set up for its environment, also by a template that has used another one."""

from __future__ import annotations

import json
import site
import subprocess
import sys

import pytest

from democrai_sandbox.runtime.worker.process import BASE_INTERPRETER

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import bootstrap
del sys.path[0]
for environment in sys.argv[2:]:
    bootstrap.use_environment(environment)
    import site, sysconfig
print(json.dumps([sys.path, sys.prefix, sys.exec_prefix, sys.executable, site.PREFIXES, sysconfig.get_paths()]))
"""
ONE, OTHER, BASE = "/srv/one", "/srv/other", sys.base_prefix


def _state(*environments):
    from democrai_sandbox.runtime.worker import bootstrap

    folder = bootstrap.__file__.rpartition("/")[0]
    command = [BASE_INTERPRETER, "-I", "-S", "-B", "-c", PROGRAM, folder, *environments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("last", [ONE, OTHER, BASE, ""])
def test_an_environment_replaces_the_one_before(last):
    """Paths and prefixes are those of an interpreter that used no other environment; empty means none."""
    assert _state(ONE, last) == _state(BASE, last) == _state(last)


def test_an_environment_sets_paths_and_prefixes():
    """Packages come last on the path, and programs find the environment's interpreter."""
    path, prefix, exec_prefix, executable, *_ = _state(ONE)
    version = "python{}.{}".format(*sys.version_info)
    assert path[-1] == f"{ONE}/lib/{version}/site-packages"
    assert (prefix, exec_prefix, executable) == (ONE, ONE, f"{ONE}/bin/python")


def test_an_interpreter_without_an_environment_has_its_packages():
    """A host that is installed for the whole system, such as in a container, has the same packages in its workers."""
    path, prefix, *_ = _state(BASE)
    assert path == [*_state("")[0], *site.getsitepackages([sys.base_prefix])]
    assert prefix == BASE
