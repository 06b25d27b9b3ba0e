"""Sends a content security policy: the pages load nothing from other sites, and contain no inline code."""


def strict_content_security_policy(get_response):
    def middleware(request):
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", "default-src 'self'")
        return response

    return middleware
