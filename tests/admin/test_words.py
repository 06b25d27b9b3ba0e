"""Errors in the language of the page. Every sentence belongs to an error that the code really raises."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.utils import translation

from django_delayq import codec
from django_delayq.console import operation_loop
from django_delayq.console.wording import SENTENCES, error_text
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer import edit
from django_delayq.producer.outbox import rows
from django_delayq.producer.stores import stores
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.scripts import formats
from django_delayq.store.scripts.site import SiteRefused
from tests.admin.conftest import JOBS, lose_redis
from tests.tasks_for_tests import close_order


def said(act, *given) -> DelayqError:
    with pytest.raises(DelayqError) as caught:
        act(*given)
    return caught.value


def check(args, kwargs, task=close_order.name, queue="orders") -> DelayqError:
    return said(edit.check, task, queue, args, kwargs)


def refusals() -> list[DelayqError]:
    """Returns our errors that reach the admin, as the code raises them."""
    gone = SimpleNamespace(user="987654", actor="admin:clerk", permission="delayq.cancel_job", verb="cancel", selection={})
    user = User.objects.create_user("clerk", is_staff=True)
    bare = SimpleNamespace(**{**vars(gone), "user": str(user.pk)})
    return [
        check([], {}),
        check([7, 8], {}),
        check([7], {"colour": "red"}),
        check([7], {"order_id": 7}),
        said(close_order.check_typed, ("7",), {}),
        check([7], {}, task="shop.tasks.renamed"),
        check([7], {}, queue="elsewhere"),
        check([7], {}, queue="order"),
        check([nested(101)], {}),
        check([10**5000], {}),
        check(["\ud800"], {}),
        check([{"\ud800": 7}], {}),
        check(["x" * 70_000], {}),
        check([7, 8], {}, task="django_delayq.message", queue="orders"),
        said(codec.loads, b"[7"),
        said(codec.loads, b"[NaN]"),
        operation_loop.refused(gone),
        operation_loop.refused(bare),
        said(formats.check, "orders", b"99"),
        StoreUnavailable(code="server_replaced", job=user.pk),
        StoreUnavailable(code="replicas_lack", where="localhost:6379, db 0", found=0, wanted=1),
        stored(ValueError("no")),
    ]


def stored(error: Exception) -> DelayqError:
    """Returns the error that a row stores, as if it were raised."""
    kept = rows.hindered(error)["problem"]
    return DelayqError(code=kept["code"], **kept["fields"])


def nested(depth: int) -> list:
    return [nested(depth - 1)] if depth else []


def test_every_sentence_is_told_in_the_language_of_the_page(orders, settings):
    errors = refusals()
    with pytest.raises(DelayqError) as refused, stores.guarded():
        stores.link.execute("HGET", "one")
    errors.append(refused.value)
    lose_redis(settings)
    with pytest.raises(DelayqError) as down, stores.guarded():
        stores.link.execute("PING")
    errors.append(down.value)
    with pytest.raises(DelayqError) as cooling_down, stores.guarded(schedules=True):
        stores.link.execute("PING")
    errors.append(cooling_down.value)
    errors.append(StoreRefused(code="redis_cluster", where="cache.internal:6379, db 0", cause="3999 10.0.0.2:6379"))
    errors.append(StoreUnavailable(code="partitions_away", partitions="orders/3, orders/7", cause=str(down.value)))
    errors.append(StoreRefused(code="redis_full", where="localhost:6379, db 0", cause="command not allowed"))
    errors.append(StoreRefused(code="redis_slot", where="10.0.0.1:6379, node of a Cluster", cause="Multiple keys request"))
    site = {"queue": "orders", "where": "localhost:6379, db 0", "ours": "7a", "theirs": "8b", "known": "localhost:6380, db 0"}
    errors += [SiteRefused(code=f"site_{kind}", **site) for kind in ("other", "workers", "moved", "behind")]
    errors.append(SiteRefused(code="site_unknown", cause="no such table"))
    told = {}
    for language in ("en", "de", "zh-hans"):
        with translation.override(language):
            told[language] = [error_text(error) for error in errors]
    assert len({*told["en"]}) == len({str(sentence) for sentence in SENTENCES.values()}) == len(errors)
    assert {error.code for error in errors} <= SENTENCES.keys()
    for english, german, chinese in zip(*told.values(), strict=True):
        assert len({english, german, chinese}) == 3, english


def test_what_is_not_known_stays_as_it_is():
    assert error_text("OperationalError: no such table") == "OperationalError: no such table"
    assert error_text("") == ""


def test_a_form_says_in_german_what_is_wrong_with_arguments(orders, staff):
    job, client = orders.ended("fail", max_attempts=1), staff()
    page = f"{JOBS}{job.id}/edit/"
    Job.objects.update(kwargs={"colour": "red"})  # the task does not take it, so it is edited as JSON
    digest = client.get(page).context["form"].digest
    with translation.override("de"):
        for args, complaint in {"[]": "Das Argument order_id fehlt.", "[7": "Zeile 1, Spalte 3 ist kein JSON."}.items():
            answer = client.post(page, {"args": args, "kwargs": "{}", "digest": digest, "confirmed": "1"})
            assert complaint in answer.content.decode()


def test_a_page_without_redis_says_why_in_german(orders, staff, settings):
    orders.scheduled()
    client = staff()
    lose_redis(settings)
    with translation.override("de"):
        text = client.get(JOBS).content.decode()
    assert "ist nicht verfügbar" in text
    assert "is not available" not in text
