from django.urls import path

from shop import views

urlpatterns = [
    path("", views.catalogue, name="catalogue"),
    path("orders/", views.orders, name="orders"),
    path("orders/<int:order_id>/", views.order, name="order"),
    path("orders/<int:order_id>/state/", views.order_state, name="order-state"),
    path("orders/<int:order_id>/pay/", views.pay, name="pay"),
    path("orders/<int:order_id>/transfer/", views.transfer, name="transfer"),
    path("orders/<int:order_id>/refund/", views.refund, name="refund"),
    path("checkout/<int:product_id>/", views.checkout, name="checkout"),
    path("webhooks/payment/", views.webhook, name="webhook"),
    path("payouts/", views.payouts, name="payouts"),
    path("payouts/state/", views.payouts_state, name="payouts-state"),
    path("payouts/<str:provider>/", views.pay_out, name="pay-out"),
    path("provider/payouts/<str:provider>/", views.payout_provider, name="payout-provider"),
    path("provider/refunds/<int:order_id>/", views.provider, name="provider"),
]
