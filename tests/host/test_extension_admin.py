"""Configured engines and extractors, compared with the existing ones."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.host.config import load
from democrai_sandbox.host.extension_admin import check_configured
from democrai_sandbox.runtime.extensions.registry import discover
from democrai_sandbox.runtime.extensions.settings import RuntimeSettings


@pytest.fixture
def registry(tmp_path):
    """One engine, whose manifest names a setting with a URL."""
    place = tmp_path / "engines" / "reader"
    place.mkdir(parents=True)
    manifest = {"name": "reader", "runtime": {"allowed_config_urls": ["service_url"]}}
    (place / "manifest.json").write_text(json.dumps(manifest))
    (place / "engine.py").write_text("")
    return discover(RuntimeSettings(data_dir=str(tmp_path), engines_path=str(tmp_path / "engines")))


def settings(section):
    return load({"extensions": section}, environ={"HOME": "/home/ann"}).settings.extensions


def test_what_there_is_is_accepted(registry):
    """Also without the URL."""
    check_configured(settings({"engines": {"reader": {"settings": {"service_url": "https://a.example"}}}}), registry)
    check_configured(settings({"engines": {"reader": {"settings": {"other": 1}}}}), registry)


def test_unknown_names_and_wrong_urls_are_refused_together(registry):
    """Each with its pointer and the nearest name."""
    wrong = {"raeder": {"install": True}, "reader": {"settings": {"service_url": "no address"}}}
    with pytest.raises(ConfigInvalid) as error:
        check_configured(settings({"engines": wrong, "extractors": {"pdf": {}}}), registry)
    found = {problem.pointer: problem.suggestion for problem in error.value.problems}
    assert found == {
        "/extensions/engines/raeder": "reader",
        "/extensions/engines/reader/settings/service_url": None,
        "/extensions/extractors/pdf": None,
    }
