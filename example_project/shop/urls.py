from django.urls import path

from shop import views

urlpatterns = [
    path("", views.catalogue, name="catalogue"),
    path("orders/", views.orders, name="orders"),
    path("orders/<int:order_id>/", views.order, name="order"),
    path("orders/<int:order_id>/state/", views.order_state, name="order-state"),
    path("orders/<int:order_id>/pay/", views.pay, name="pay"),
    path("orders/<int:order_id>/refund/", views.refund, name="refund"),
    path("checkout/<int:product_id>/", views.checkout, name="checkout"),
    path("provider/refunds/<int:order_id>/", views.provider, name="provider"),
]
