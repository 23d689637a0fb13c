"""Several Django sites in one process: Django's settings are the process's, so each site brings URLs and middleware."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import count
from types import ModuleType
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.test import override_settings

NO_URLS = "tests_django_sites_without_urls"
_making = threading.Lock()
_numbers = count()


def configure() -> None:
    """Has the settings that all sites share; more than once does nothing."""
    with _making:
        if settings.configured:
            return
        urls: Any = ModuleType(NO_URLS)
        urls.urlpatterns = []
        sys.modules[NO_URLS] = urls
        settings.configure(
            ALLOWED_HOSTS=["*"],
            SECRET_KEY="not a secret, and the same in each process of a host",
            ROOT_URLCONF=NO_URLS,
            INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
            SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            LOGGING_CONFIG=None,
        )
        django.setup()


def site(patterns: Sequence[Any], middleware: Sequence[str]) -> Any:
    """Makes a site's ASGI app.

    Args:
        patterns: its URLs.
        middleware: paths of its middleware, the outermost first.
    """
    configure()
    name = f"tests_django_site_{next(_numbers)}"  # Django caches what it has read of a module
    urls: Any = ModuleType(name)
    urls.urlpatterns = list(patterns)
    sys.modules[name] = urls
    # A handler reads its middleware once; the settings change only for that moment, and only for one site at a time.
    with _making, override_settings(MIDDLEWARE=list(middleware)):
        app = get_asgi_application()
    make_request: Callable[..., Any] = app.create_request

    def create_request(*arguments: Any) -> Any:
        request, error = make_request(*arguments)
        if request is not None:
            request.urlconf = name
        return request, error

    app.create_request = create_request
    return app
