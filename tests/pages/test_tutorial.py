"""docs/start/tutorial: runs its chapters from the first line to the last, in one directory."""

from __future__ import annotations

import re
import shutil

import pytest

from tests import servers
from tests.pages.blocks import DOCS
from tests.pages.walk import Walk, shape

CHAPTERS = re.search(r"```\{toctree\}\n.*?\n\n(.*?)```", (DOCS / "start/tutorial/index.md").read_text(), flags=re.DOTALL)[1].split()
PRESS = """
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django_delayq.models import Job
client = Client(SERVER_NAME="localhost")
assert client.login(username="ann", password="tutorial")
job = Job.objects.get(state="failed")
assert "Requeue" in client.get(reverse("admin:delayq_job_change", args=[job.pk])).content.decode()
assert client.post(reverse("admin:delayq_job_requeue", args=[job.pk]), {"reason": "the provider is back"}).status_code == 302
for name in ("job_failures", "queue_changelist"):
    assert client.get(reverse(f"admin:delayq_{name}")).status_code == 200
"""


def press_requeue(walk: Walk) -> None:
    """Does what a person does on the page of the failed job."""
    (walk.folder.parent / "press.py").write_text(PRESS)
    walk.run(f"python manage.py shell -v 0 < {walk.folder.parent / 'press.py'}")


@pytest.mark.slow
def test_the_tutorial_does_what_it_says():
    home = servers.folder()  # with a short name, because sockets need it
    project = home / "shop"
    project.mkdir()
    walk = Walk(project, {"the test presses the button here": press_requeue})
    try:
        for chapter in CHAPTERS:
            walk.do(DOCS / f"start/tutorial/{chapter}.md")
    finally:
        walk.end()
        shutil.rmtree(home, ignore_errors=True)


def test_a_line_that_is_not_printed_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\n```\n\n```text\ntwo\n```\n")
    (tmp_path / "shop").mkdir()
    with pytest.raises(AssertionError, match="shows"):
        Walk(tmp_path / "shop", {}).do(page)
    assert shape("0352SRmNKaQiRFFsusf64N  failed") == shape("0352SRm8bz3bV35agYN7IZ   failed")
