from django.contrib import admin

from shop.models import Ledger, Order, Product


class LedgerInline(admin.TabularInline):
    model = Ledger
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "product", "state", "created_at", "pay_until")
    list_filter = ("state",)
    inlines = (LedgerInline,)


admin.site.register(Product)
