"""Risk of an access: one row for each kind of target that changes it."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.values import AccessTuple
from democrai_sandbox.access.verdicts import History, RiskLevel, assess
from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

FILES = """
low     read     /srv/data/report.csv           operation
low     read     /tmp/work/table.csv            operation
low     read     /usr/share/zoneinfo/UTC        operation
low     read     /opt/app/data/model.bin        operation
low     read     /usr/share/doc/notes.key       operation
medium  create   /srv/data/report.csv           operation
medium  modify   /srv/data/report.csv           operation
high    delete   /srv/data/report.csv           operation
high    execute  /usr/bin/git                   operation
high    execute  /bin/bash                      any_command
high    execute  /usr/bin/python3.11            any_command
high    execute  /usr/bin/sudo                  any_command
high    read     /                              everything
high    modify   /                              everything
high    read     /etc                           broad
high    read     /var                           broad
high    read     /usr                           broad
high    read     /srv                           broad
high    read     /root                          home
high    read     /home/uma                      home
high    read     /Users/uma                     home
high    read     /home                          homes
medium  read     /home/uma/notes.txt            in_home
medium  read     /root/notes                    in_home
high    read     /etc/shadow                    secret
high    read     /etc/shadow-                   secret
high    read     /etc/gshadow                   secret
high    read     /etc/sudoers.d/admins          secret
high    read     /etc/ssl/private/host.key      secret
high    read     /run/secrets/database          secret
high    read     /var/run/secrets/kubernetes.io/serviceaccount/token secret
high    read     /home/uma/.ssh                 secret
high    read     /home/uma/.ssh/id_ed25519      secret
high    read     /root/.aws/credentials         secret
high    read     /root/.kube/config             secret
high    read     /home/uma/.netrc               secret
high    read     /home/uma/.config/gcloud/x.db  secret
high    read     /home/uma/.mozilla/firefox     secret
high    read     /home/uma/.bash_history        secret
high    read     /srv/app/.env                  secret
high    read     /srv/app/.env.production       secret
high    read     /srv/app/server.pem            secret
high    read     /srv/app/server.KEY            secret
high    read     /srv/app/credentials.json      secret
high    read     /srv/app/service-account-1.json secret
high    read     /srv/backup/id_rsa             secret
high    read     /proc/1/environ                secret
high    read     /proc/self/mem                 secret
high    read     /dev/sda1                      device
high    read     /dev/mem                       device
medium  read     /etc/hostname                  system
medium  read     /proc/meminfo                  system
medium  read     /var/log/syslog                system
high    create   /usr/local/bin/tool            program
high    modify   /etc/cron.d/job                program
high    create   /home/uma/.bashrc              program
high    create   /home/uma/.config/autostart/x.desktop program
high    modify   /srv/app/plugin.so             program
high    create   /srv/app/start.sh              program
high    create   /srv/app/module.py             program
"""

NETWORK = """
low     receive  https://api.example.com/v1     operation
medium  send     https://api.example.com/v1     operation
medium  connect  api.example.com:443            operation
medium  receive  http://api.example.com/v1      not_encrypted
high    send     http://api.example.com/v1      not_encrypted
high    connect  ws://api.example.com/socket    not_encrypted
medium  receive  http://127.0.0.1:8000/         loopback
medium  receive  http://10.0.0.7/               private
high    send     http://10.0.0.7/               not_encrypted
medium  connect  192.168.1.1:443                private
medium  connect  [fc00::1]:443                  private
high    connect  169.254.10.10:80               link_local
high    receive  http://169.254.169.254/latest  metadata
high    receive  http://metadata.google.internal/ metadata
high    connect  100.100.100.200                metadata
high    connect  [fd00:ec2::254]:80             metadata
medium  connect  93.184.216.34:443              address
medium  receive  https://db.internal/           private
medium  receive  https://intranet/              private
medium  connect  db.example.com:5432            service
medium  connect  mail.example.com:25            service
medium  connect  *.example.com                  breadth
high    connect  0.0.0.0/0                      breadth
high    connect  10.0.0.0/8                     breadth
medium  connect  198.51.100.0/24                breadth
high    connect  169.254.0.0/16                 metadata
high    receive  https://xn--pypal-4ve.com/     confusable
medium  receive  https://xn--mnchen-3ya.de/     other_letters
medium  connect  unix:/run/postgresql/.s.PGSQL.5432 local_service
high    connect  unix:/var/run/docker.sock      control
"""


def rows(text, resource_type):
    return [(*line.split(), resource_type) for line in text.strip().splitlines()]


ROWS = rows(FILES, ResourceType.FILESYSTEM) + rows(NETWORK, ResourceType.NETWORK)


def access(operation, target, resource_type):
    return AccessTuple(Subject(SubjectKind.MODULE, "weather"), resource_type, Operation(operation), target)


@pytest.mark.parametrize(("level", "operation", "target", "code", "resource_type"), ROWS)
def test_level_and_reason(level, operation, target, code, resource_type):
    """The level, and a reason with that level."""
    found = assess(access(operation, target, resource_type))
    assert (found.level, code in {reason.code for reason in found.reasons if reason.level == found.level}) == (
        RiskLevel(level),
        True,
    ), found


def test_an_earlier_denial_raises_a_low_risk():
    """An access that was denied before is not routine."""
    found = assess(access("read", "/srv/data/x", ResourceType.FILESYSTEM), History(denials=1))
    assert (found.level, found.reasons[0].code) == (RiskLevel.MEDIUM, "denied_before")


def test_reasons_come_with_the_highest_first():
    """Reasons of all levels are listed."""
    found = assess(access("send", "http://10.0.0.7/", ResourceType.NETWORK), History(revocations=1))
    assert [(reason.code, reason.level) for reason in found.reasons] == [
        ("not_encrypted", RiskLevel.HIGH),
        ("operation", RiskLevel.MEDIUM),
        ("private", RiskLevel.MEDIUM),
        ("revoked_before", RiskLevel.MEDIUM),
    ]


def test_a_target_that_cannot_be_read_is_a_high_risk():
    """A database can contain targets that an earlier version wrote differently."""
    assert assess(access("send", "http://[::/", ResourceType.NETWORK)).level is RiskLevel.HIGH


def test_a_program_that_a_system_dependency_names():
    """Running a program is a high risk for both resource types."""
    assert assess(access("execute", "ffmpeg", ResourceType.SYSTEM_DEPENDENCY)).level is RiskLevel.HIGH


def test_something_broader_is_at_least_as_risky():
    """A folder has the reasons of a file in it besides its own, each once."""
    subject = Subject(SubjectKind.MODULE, "reports")
    file, folder = (
        AccessTuple(subject, ResourceType.FILESYSTEM, Operation.READ, path) for path in ("/srv/app/.env", "/srv/app")
    )
    assert assess(folder).level is RiskLevel.LOW
    found = assess(folder, includes=assess(file))
    assert (found.level, [reason.code for reason in found.reasons]) == (RiskLevel.HIGH, ["secret", "operation"])
