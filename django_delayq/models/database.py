"""The database of the rows, `DELAYQ["DATABASE"]`: its connection, its transactions, and the manager of all models."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

from django.core.signals import setting_changed
from django.db import connections, models, transaction
from django.dispatch import receiver

from django_delayq import conf
from django_delayq.setting_readers import SETTING

RowT = TypeVar("RowT", bound=models.Model)


_alias = ""  # kept, since each query needs it


@receiver(setting_changed, dispatch_uid="delayq.database")
def _forget(*, setting: str, **_: Any) -> None:
    global _alias
    _alias = "" if setting == SETTING else _alias


def alias() -> str:
    """The alias of this database in DATABASES."""
    global _alias
    _alias = _alias or conf.get().database
    return _alias


def connection() -> Any:
    """The connection of this thread."""
    return connections[_alias or alias()]


def atomic(*, savepoint: bool = True, durable: bool = False) -> transaction.Atomic:
    """`transaction.atomic()` on this database."""
    return transaction.atomic(using=_alias or alias(), savepoint=savepoint, durable=durable)


class RowManager(models.Manager[RowT]):
    """Uses `DELAYQ["DATABASE"]` whatever the project's routers say, because all rows are there."""

    def get_queryset(self) -> models.QuerySet[RowT]:
        """All rows. `db_manager()` and `using()` can still choose another database."""
        rows = super().get_queryset()
        return rows if self._db else rows.using(_alias or alias())


class DelayqModel(models.Model):
    """A table of this package."""

    objects: ClassVar[RowManager[Self]] = RowManager()

    class Meta:
        abstract = True
