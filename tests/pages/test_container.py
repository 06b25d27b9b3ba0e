"""The image and the services of docs/deploy, built and started in namespaces of Linux, since not every machine has a container runtime:
a new environment, a read-only root, a separate process tree, and a user without rights.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conftest import missing
from tests.ports import free_port
from tests.servers import PASSWORD, USER, PostgresServer, RedisServer, ServerMissing
from tests.stage import ROOT, Actor, eventually

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "docs" / "deploy"
# Prepares the mounts of a container: $1 is its folder, $2 "rw" for a build, and the rest the command.
ENTER = """
set -e
folder=$1 mode=$2
shift 2
mount -t tmpfs none /srv
for name in python shop venv source database redis; do
    mkdir /srv/$name
    mount --bind "$(readlink -f "$folder/$name")" /srv/$name
done
mount -t tmpfs none /tmp
cd /srv/shop
if [ "$mode" = rw ]; then exec "$@"; fi
for name in python shop venv source; do mount -o remount,ro,bind /srv/$name; done
mount -o remount,ro,bind /
exec setpriv --reuid=nobody --regid=nogroup --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
SETTINGS = """
import os
from urllib.parse import unquote, urlsplit

url = urlsplit(os.environ["DATABASE_URL"])
SECRET_KEY = os.environ["SECRET_KEY"]
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_delayq", "orders"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.strip("/"),
        "USER": url.username,
        "PASSWORD": url.password,
        "HOST": unquote(url.hostname),
    }
}
USE_TZ = True
DELAYQ = {"REDIS": os.environ["DELAYQ_REDIS"], "SIGNING": True}
"""
TASKS = """
import os
import django_delayq as delayq

@delayq.task
def look() -> list:
    return [os.getuid(), os.getppid(), os.access("/srv/shop", os.W_OK), os.access("/tmp", os.W_OK)]
"""
MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


class Container:
    """A folder with the mounts of a container. Its commands run with the environment of the services."""

    def __init__(self, folder: Path, database: Path, redis: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        for name in ("shop", "venv"):
            (folder / name).mkdir()
        for name, target in (("python", sys.base_prefix), ("source", ROOT), ("database", database), ("redis", redis)):
            (folder / name).symlink_to(target)
        self.environment = {
            "PATH": "/srv/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LD_LIBRARY_PATH": "/srv/python/lib",  # a Python of pyenv names its libpython by a path below /root
            "DATABASE_URL": "postgres://delayq:secret@%2Fsrv%2Fdatabase/postgres",
            "DELAYQ_REDIS": f"unix://{USER}:{PASSWORD}@/srv/redis/r.sock",
            "SECRET_KEY": "s" * 50,
        }

    def command(self, *words: str, mode: str = "ro") -> list[str]:
        return ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", ENTER, "sh", str(self.folder), mode, *words]

    def run(self, *words: str, mode: str = "ro") -> str:
        done = subprocess.run(
            self.command(*words, mode=mode), env={**self.environment, "HOME": "/tmp"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def build(container: Container, context: Path) -> None:
    """Does what the Dockerfile says."""
    container.run("/srv/python/bin/python3", "-m", "venv", "/srv/venv", mode="rw")
    workdir, shop = "", container.folder / "shop"
    for word, rest in instructions():
        if word == "WORKDIR":
            workdir = rest
        elif word == "COPY":
            source, to = rest.split()
            assert (workdir, to) == ("/srv/shop", ".")
            one = context / source
            shutil.copytree(one, shop, dirs_exist_ok=True) if one.is_dir() else shutil.copy(one, shop)
        elif word == "RUN":
            container.run(*shlex.split(rest), mode="rw")
        elif word == "ENV":
            container.environment |= dict(pair.split("=") for pair in rest.split())
        elif word == "USER":
            assert rest == "nobody"
        else:
            assert word in ("FROM", "CMD"), word


def service(name: str) -> str:
    """The command of a service of compose.yml."""
    services = (DEPLOY / "compose.yml").read_text().partition("services:")[2]
    [command] = re.findall(rf"^  {name}:\n(?:    .*\n)*?    command: (.*)$", services, flags=re.MULTILINE)
    return command


def in_namespaces(*words: str) -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", f"mount -t tmpfs none /srv && {' '.join(words)}"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def container(tmp_path_factory, own_redis: Callable[..., RedisServer]) -> Iterator[Container]:
    if not in_namespaces("mount", "-o", "remount,ro,bind", "/"):
        missing("this user may not create namespaces")
    try:
        database = PostgresServer()
    except ServerMissing as error:
        missing(str(error))
    with database:
        redis = own_redis()
        redis.directory.chmod(0o755)
        Path(redis.socket).chmod(0o777)
        yield Container(tmp_path_factory.mktemp("container"), database.directory, redis.directory)


def test_the_image_and_the_services_of_the_documentation_work_as_a_user_without_rights(container: Container, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "orders").mkdir()
    for name, text in {
        "requirements.txt": "/srv/source\npsycopg[binary]\n",
        "manage.py": MANAGE,
        "shop_settings.py": SETTINGS,
        "orders/__init__.py": "",
        "orders/tasks.py": TASKS,
    }.items():
        (tmp_path / name).write_text(text)
    build(container, tmp_path)
    container.run(*shlex.split(service("migrate")))
    container.run("python", "manage.py", "check", "--deploy", "--fail-level", "ERROR", "--database", "default")
    job = json.loads(container.run("python", "manage.py", "delayq", "schedule", "orders.tasks.look", "--json"))
    port = str(free_port())
    command = container.command(*shlex.split(service("worker").replace("8081", port)))
    worker = Actor(
        tmp_path / "worker.log", ["env", "-i", *(f"{name}={value}" for name, value in container.environment.items()), *command], {}
    )
    worker.start()
    try:

        def result() -> list[object] | None:
            return json.loads(container.run("python", "manage.py", "delayq", "inspect", job["id"], "--json"))["job"]["result"]

        assert eventually(result, worker.text) == [65534, 1, False, True], "it runs as nobody, below PID 1, and writes to /tmp only"
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            assert answer.status == 200
        [first] = worker.children()
        os.kill(first, signal.SIGTERM)
        assert worker.wait() == 0, worker.text()
    finally:
        worker.kill_tree()
