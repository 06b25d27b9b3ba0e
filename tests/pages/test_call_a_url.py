"""docs/howto/call-a-url.md names everything that the code has."""

from __future__ import annotations

import inspect
import re

import django_delayq
from django_delayq.targets import answers, webhook
from tests.pages.blocks import DOCS

PAGE = (DOCS / "howto/call-a-url.md").read_text()


def test_every_option_of_deliver_is_described():
    options = {name for name, one in inspect.signature(django_delayq.deliver).parameters.items() if one.kind is one.KEYWORD_ONLY}
    table = PAGE.partition("| Option |")[2].partition("\n\n")[0]
    assert options == set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))


def test_every_way_in_which_a_delivery_fails_is_described():
    named = set(re.findall(r"`([^`\n]+)`", PAGE))
    assert {*answers.TEXTS, *webhook.TEXTS} <= named
