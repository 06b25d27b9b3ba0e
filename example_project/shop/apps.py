from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self):
        from shop import payments, receivers  # noqa: F401  # declares tasks, connects receivers
