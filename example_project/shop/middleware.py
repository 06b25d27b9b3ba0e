"""The shop's pages load nothing from elsewhere and hold no inline code; the browser is told so."""


def strict_content_security_policy(get_response):
    def middleware(request):
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", "default-src 'self'")
        return response

    return middleware
