from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("queue/v1/", include("django_delayq.contrib.gateway.urls")),  # the warehouse pulls its messages here
    path("favicon.ico", RedirectView.as_view(url=static("shop/icon.svg"))),  # the admin's pages name no icon
    path("", include("shop.urls")),
]
