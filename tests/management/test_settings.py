"""`delayq settings`: the settings that DELAYQ accepts, for users who have only the wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import django_delayq
from django_delayq import checks, conf
from django_delayq.management.look_commands import CLUSTER_RIGHTS, RIGHTS
from tests import servers


def test_every_setting_is_told_with_its_default(run):
    answer = run("settings")
    heads = [line.split()[0] for line in answer.lines if not line.startswith(" ")]
    assert heads[:-1] == [*conf.SETTINGS]
    assert sum(line.startswith("    default: ") for line in answer.lines) == len(heads[:-1])


def test_all_or_one_as_json(run):
    assert [one["name"] for one in run("settings", "--json").json] == [*conf.SETTINGS]
    [lease] = run("settings", "lease", "--json").json
    assert (lease["name"], lease["default"], lease["per_queue"]) == ("LEASE", 30, True)
    assert lease["meaning"] == conf.SETTINGS["LEASE"].meaning


def test_a_name_that_is_none_is_refused_with_the_nearest(run):
    answer = run("settings", "LEESE")
    assert (answer.code, answer.error) == (2, "Unknown setting LEESE (did you mean 'LEASE'?).")


@pytest.mark.parametrize("key", [key for key in conf.IN_PROJECT if key not in ("PREFIX", "DATABASE")])
def test_a_wrong_value_leads_to_a_text_that_tells_of_it_while_settings_are_wrong(run, settings, key):
    settings.DELAYQ = {**settings.DELAYQ, key: object()}
    [message] = [message for message in checks.check_settings() if f'["{key}"]' in message.msg]
    if command := re.search(r"manage\.py delayq (settings \w+)", message.hint):
        assert run(*command[1].split()).lines[0].startswith(key)


def test_the_rights_of_the_redis_user_are_those_that_are_documented():
    assert RIGHTS.split() == servers.acl()
    assert CLUSTER_RIGHTS.split() == servers.cluster_rules()


def test_no_text_of_the_package_leads_into_the_repository():
    package = Path(django_delayq.__file__).parent
    quoted = re.compile(r'"[^"\n]*\bdocs/[^"\n]*"')
    assert [path.name for path in package.rglob("*.py") if quoted.search(path.read_text())] == []
