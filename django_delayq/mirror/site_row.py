"""The id of the site as the database has it, and where its queues were last; see `store/site.py`."""

from __future__ import annotations

from typing import Any, Final

from django.core.signals import setting_changed
from django.db import Error
from django.dispatch import receiver

from django_delayq import conf, under_test
from django_delayq.models import Checkpoint, Site
from django_delayq.setting_readers import SETTING
from django_delayq.store import site
from django_delayq.store.events import FIRST
from django_delayq.store.site import Known, SiteRefused

DERIVED: Final = site.Derived()
NOTHING: Final = Known("", FIRST)  # no checkpoint


class DatabaseSite:
    """What the database says. A process that knows the id keeps it, whatever happens to the database."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], Known] = {}  # as it was when the id was read

    def id(self, prefix: str) -> str:
        """See `site.Database`. Under test the row is truncated, cloned or left over, so the prefix says which site it is."""
        if under_test.derives_site():
            return DERIVED.id(prefix)
        using = conf.get().database
        try:
            found = Site.objects.using(using).values_list("site", flat=True).first()
            rows = Checkpoint.objects.using(using).values_list("queue", "partition", "address", "last_event")
            self._first = {(queue, partition): Known(address or "", last) for queue, partition, address, last in rows}
        except Error as error:
            raise SiteRefused(code="site_unknown", cause=str(error).strip().rstrip(".")) from error
        if found is None:
            raise SiteRefused(code="site_unknown", cause="the table delayq_site is empty; manage.py delayq adopt makes an id")
        return found

    def known(self, queue: str, partition: int) -> Known | None:
        """See `site.Database`. Without the database the address that was known when the id was read."""
        if under_test.derives_site():
            return None
        rows = Checkpoint.objects.using(conf.get().database).filter(queue=queue, partition=partition)
        try:
            found = rows.values_list("address", "last_event").first()
        except Error:
            return self._first.get((queue, partition))
        return Known(found[0] or "", found[1]) if found else NOTHING


@receiver(setting_changed, dispatch_uid="delayq.site")
def _forget(*, setting: str, **_: Any) -> None:
    if setting in (SETTING, "DATABASES"):
        site.forget()
