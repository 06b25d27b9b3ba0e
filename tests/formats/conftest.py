from tests.worker.conftest import durable, new_database, shop

__all__ = ["durable", "new_database", "shop"]
