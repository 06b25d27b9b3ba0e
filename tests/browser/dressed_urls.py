from django.conf import settings
from django.urls import include, path
from urls import urlpatterns as of_the_example

urlpatterns = [*of_the_example]
if settings.DRESS == "grappelli":
    urlpatterns.insert(0, path("grappelli/", include("grappelli.urls")))
