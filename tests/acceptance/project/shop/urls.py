"""The shop's URLs: the same verbs in sync and in async views."""

from django.contrib import admin
from django.urls import include, path
from orders import async_views, views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.checkout),
    path("orders/of/<int:total>/", views.of_total),
    path("orders/<int:order_id>/close/", views.close),
    path("orders/<int:order_id>/pay/", views.pay),
    path("orders/<int:order_id>/more-time/", views.more_time),
    path("orders/<int:order_id>/receipt/", views.receipt),
    path("results/<str:result_id>/", views.result),
    path("jobs/<uuid:job_id>/", views.job),
    path("ledger/", views.ledger),
    path("reports/<str:subject>/", views.reports),
    path("stock/<str:task>/", views.stock),
    path("async/orders/", async_views.checkout),
    path("async/orders/atomic/", async_views.checkout_in_a_transaction),
    path("async/orders/held-up/", async_views.checkout_behind_a_slow_query),
    path("async/abandoned/", async_views.left_behind),
    path("async/orders/<int:order_id>/cancel/", async_views.keep_open),
    path("async/orders/<int:order_id>/thank/", async_views.thank),
    path("async/orders/<int:order_id>/receipt/", async_views.receipt),
    path("async/jobs/<uuid:job_id>/", async_views.job),
    path("async/wrong/", async_views.wrong),
    path("metrics", include("django_delayq.contrib.prometheus.urls")),
    path("health/", include("django_delayq.contrib.health.urls")),
]
