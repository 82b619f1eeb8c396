"""The alert rules: each fires for the numbers of nodes in trouble, by the programs of Prometheus themselves."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
import yaml

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PLAIN, ROOT, serving, until
from tests.console.test_outage import QUICKLY, ask, values
from tests.services.ports import port
from tests.services.postgres import postgres_server
from tests.services.redis import RedisServer

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
STEP = 15
"""Seconds between two scrapes in the tests of rules."""
LONG = 26 * 3600 // STEP
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node on PostgreSQL and Redis, with a token that it knows."""
    folder = tmp_path_factory.mktemp("node")
    redis = RedisServer(folder).start()
    with postgres_server() as postgres:
        config = {
            "database": {"url": postgres.new_database()},
            "network": {"stream": {"type": "redis", "url": redis.url}},
            "extra_module_dirs": [str(later(folder))],
        }
        with serving(folder, config, before=QUICKLY) as served:
            token = served.token(served.administrator(), Scope.STATUS_READ, Scope.MODULES_RUN)
            time.sleep(1)  # nothing shows from outside that it is remembered
            yield SimpleNamespace(served=served, postgres=postgres, redis=redis, token=token, folder=folder)
    redis.stop()


def later(folder):
    """Make a module that asks for access a while after it was called: what runs already goes on in an outage."""
    module = folder / "more" / "later"
    module.mkdir(parents=True)
    (module / "manifest.json").write_text('{"name": "later"}')
    (module / "module.py").write_text(LATER)
    return module.parent


LATER = """
import time
from democrai_sandbox import sdk

@sdk.action("ask")
def ask():
    time.sleep(4)
    sdk.access.check_external_access(resource_type="network", operation="receive", target="https://one.example.org")
"""


def scraped(node):
    """What Prometheus stores of one scrape."""
    found = values(ask(node.served, "/metrics", node.token))
    return found | {"up": 1.0}


@pytest.fixture(scope="module")
def scrapes(node):
    """The numbers of the node in good order, and in trouble: without servers, and with checks that failed."""
    headers = {"Authorization": f"Bearer {node.token}"}
    with httpx.Client(base_url=node.served.url, headers=headers, timeout=60, **PLAIN) as client:
        until(lambda: scraped(node)["democrai_events_connected"] == 1, "events")
        node.served.stop_weather(client)
        good = scraped(node)
        asking = threading.Thread(target=client.post, args=("/api/v1/modules/later/actions/ask",), kwargs={"json": {}})
        asking.start()
        time.sleep(1)
        node.postgres.kill()
        node.redis.kill()
        try:
            bad = until(lambda: _in_trouble(node, good), "every part to be missed")
        finally:
            node.redis.start()
            node.postgres.start()
            asking.join()
    until(lambda: ask(node.served, "/health/ready").status_code == 200, "serving again")
    return good, bad


MOMENTS = {
    "DemocraiManyRequests": "80m",
    "DemocraiEventsAway": "70m",
    "DemocraiExtensionBroken": "70m",
    "DemocraiRequestsWait": "26h",
}
"""When those are looked at that wait for longer; all trouble begins after an hour."""
FAILED_CHECKS = 'democrai_checks_total{layer="approvals",result="failed"}'
BROKEN = 'democrai_extensions{kind="module",state="broken"}'
UP = 'democrai_process_up{process="helper"}'
RESTARTS = 'democrai_process_restarts_total{process="helper"}'
LAG = "democrai_refresh_lag_seconds"
OLDEST = "democrai_pending_oldest_seconds"
MOVED = ("democrai_store_reachable", "democrai_events_connected", FAILED_CHECKS)
"""What is different in trouble."""


def _in_trouble(node, good):
    found = scraped(node)
    return found if all(found[name] != good[name] for name in MOVED) and found[LAG] > 2 else None


def trouble(good, bad):
    """The alerts, each with the numbers that it is for: those of the node, or what they become in time."""
    return {
        "DemocraiNodeAway": {"up": "0"},
        "DemocraiStoreAway": {"democrai_store_reachable": bad["democrai_store_reachable"]},
        "DemocraiEventsAway": {"democrai_events_connected": bad["democrai_events_connected"]},
        "DemocraiChecksFail": {FAILED_CHECKS: bad[FAILED_CHECKS]},
        "DemocraiDecisionsLate": {LAG: f"{bad[LAG]}+{STEP}"},  # a second more with each second
        "DemocraiRequestsWait": {OLDEST: f"{good[OLDEST]}+{STEP}"},
        "DemocraiManyRequests": {"democrai_pending_requests": "501"},
        "DemocraiHelperFails": {"democrai_helper_failures_total": good["democrai_helper_failures_total"] + 1},
        "DemocraiProcessDown": {UP: "0"},
        "DemocraiProcessRestarts": {RESTARTS: "1"},
        "DemocraiExtensionBroken": {BROKEN: good[BROKEN]},
    }


def played(tmp_path, samples, changed, expected, until="64m"):
    """Play samples to the rules: an hour in good order, then trouble; compare what fires at a moment of it."""
    steps = LONG if until.endswith("h") else 400
    series = [
        {"series": labelled(name), "values": f"{shown(value)}x240 {shown(changed.get(name, value))}x{steps}"}
        for name, value in samples.items()
    ]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    wanted = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected]
    moments = [
        {"expr": firing, "eval_time": "59m", "exp_samples": []},
        {"expr": firing, "eval_time": until, "exp_samples": wanted},
    ]
    tests = [{"interval": f"{STEP}s", "input_series": series, "promql_expr_test": moments}]
    content = {"rule_files": [str(RULES)], "evaluation_interval": f"{STEP}s", "tests": tests}
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(content))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def shown(value):
    return value if isinstance(value, str) else f"{value:g}"


def labelled(name):
    """A sample as it is stored: with the job and the address of its target."""
    base, _, labels = name.partition("{")
    own = f",{labels.rstrip('}')}" if labels else ""
    return f'{base}{{job="democrai-sandbox",instance="one"{own}}}'


@contextmanager
def prometheus(folder):
    """Run Prometheus on the configuration in a folder; give a function that returns the names of alerts that fire."""
    with port() as number, (folder / "log").open("wb") as log:
        address = f"127.0.0.1:{number}"
        command = ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)

        def firing():
            try:
                answer = httpx.get(f"http://{address}/api/v1/alerts", **PLAIN)
            except httpx.ConnectError:
                return set()
            found = answer.json()["data"]["alerts"] if answer.status_code == 200 else ()  # 503 while it starts
            return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}

        try:
            yield firing
        finally:
            process.kill()
            process.wait()


def test_promtool_takes_the_rules():
    """Nothing in the file is malformed."""
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_rule_is_tested(scrapes):
    """A new rule comes with its trouble."""
    assert sorted(trouble(*scrapes)) == sorted(ALERTS)


def test_nothing_fires_in_good_order(tmp_path, scrapes):
    """A node with all its servers raises no alarm."""
    good = {name: value for name, value in scrapes[0].items() if name != BROKEN}
    played(tmp_path, good, {}, [])


@pytest.mark.parametrize("alert", ALERTS)
def test_a_rule_fires(tmp_path, scrapes, alert):
    """Each rule fires for its trouble, and no other one does."""
    good, bad = scrapes
    samples = {name: value for name, value in good.items() if name != BROKEN}
    changed = trouble(good, bad)[alert]
    samples |= {UP: 1.0, RESTARTS: 0.0}  # of a node with the kernel layer: see test_processes.py
    samples |= {name: 0.0 for name in changed if name == BROKEN}
    played(tmp_path, samples, changed, [alert], MOMENTS.get(alert, "64m"))


def test_prometheus_raises_the_alarm(node, tmp_path):
    """A real Prometheus that scrapes the node: alerts of an outage fire while PostgreSQL and Redis are killed."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)  # what takes its time is tested above
    (tmp_path / "alerts.yaml").write_text(json.dumps(rules))
    target = node.served.url.removeprefix("http://")
    job = {
        "job_name": "democrai-sandbox",
        "authorization": {"credentials": node.token},
        "static_configs": [{"targets": [target]}],
    }
    content = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [job],
    }
    (tmp_path / "prometheus.yaml").write_text(json.dumps(content))
    with prometheus(tmp_path) as firing:
        until(lambda: firing() == {"DemocraiExtensionBroken"}, "the first scrapes")
        node.postgres.kill()
        node.redis.kill()
        try:
            expected = {"DemocraiStoreAway", "DemocraiEventsAway", "DemocraiDecisionsLate", "DemocraiExtensionBroken"}
            until(lambda: expected <= firing() and "DemocraiNodeAway" not in firing(), "the alarm")
        finally:
            node.redis.start()
            node.postgres.start()
        until(lambda: firing() == {"DemocraiExtensionBroken"}, "the end of the alarm")
        node.served.process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: "DemocraiNodeAway" in firing(), "the alarm for the node itself")
        finally:
            node.served.process.send_signal(signal.SIGCONT)
