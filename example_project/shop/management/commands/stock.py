"""`manage.py stock`: fills the shelves."""

from django.core.management.base import BaseCommand

from shop.models import Product

GOODS = [
    ("Notebook, squared", "9.50", "192 pages that lie flat, thread-bound, for plans and second thoughts."),
    ("Fountain pen", "34.00", "A steel nib that starts at once, also after a week in a pocket."),
    ("Desk calendar", "14.90", "One page a week, with room for what was put off."),
    ("Sealing wax", "7.25", "Deep green. Closes letters for good."),
    ("Index cards", "5.80", "A hundred of them, ruled, in a box that survives a bag."),
]


class Command(BaseCommand):
    help = "Fills the shelves of the example shop."

    def handle(self, *args, **options):
        for name, price, blurb in GOODS:
            Product.objects.get_or_create(name=name, defaults={"price": price, "blurb": blurb})
        self.stdout.write(f"{Product.objects.count()} products on the shelves.")
