"""The app: it connects the receivers when Django has started."""

from importlib import import_module

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    name = "orders"

    def ready(self) -> None:
        import_module("orders.receivers")  # connects them; only now, since it needs the models
