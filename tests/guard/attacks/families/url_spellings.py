"""URL paths and methods that the guard and the server could read differently."""

from __future__ import annotations

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, REFUSED, here, network_attack, network_attacks_of, peers, url, web
from tests.guard.attacks.peer_http import Reading

PATHS = {
    "dots": "/allowed/../secret",
    "dots_twice": "/allowed/x/../../secret",
    "dots_escaped": "/allowed/%2e%2e/secret",
    "dots_half_escaped": "/allowed/.%2E/secret",
    "dots_escaped_twice": "/allowed/%252e%252e/secret",
    "dots_escaped_by_digits": "/allowed/%25%32%65%25%32%65/secret",
    "slash_escaped": "/allowed%2f..%2fsecret",
    "slash_escaped_before": "/allowed/..%2fsecret",
    "backslash": "/allowed/..\\secret",
    "backslash_escaped": "/allowed/..%5csecret",
    "parameters": "/allowed/..;x=1/secret",
    "dot_at_the_front": "/./secret",
    "leading_slashes": "//secret",
    "single_dots": "/allowed/././../secret",
    "empty_parts": "/allowed//..//secret",
    "query_in_the_middle": "/allowed/..%2fsecret?x=/allowed",
    "escaped_letters": "/%73ecret",
    "sibling": "/allowedsecret",
    "case": "/ALLOWED/../secret",
    "fragment": "/allowed#/../../secret",
    "fragment_escaped": "/allowed%23/../../secret",
}


def by_client(path: str, method: str = "GET"):
    """`http.client` sends the path as it is."""

    def act(ground: Ground) -> object:
        import http.client

        connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
        connection.request(method, path)
        return connection.getresponse().read()

    return act


network_attacks_of(
    {name: by_client(path) for name, path in PATHS.items()},
    "a path leads elsewhere once the server has decoded it: {}",
    expect=REFUSED,
    reading=Reading(decodes=True),
    group="path_",
)


def by_urllib(path: str):
    def act(ground: Ground) -> object:
        import urllib.request

        return urllib.request.urlopen(url(ground, path), timeout=LIMIT).read()

    return act


network_attacks_of(
    {name: by_urllib(PATHS[name]) for name in ("dots", "dots_escaped", "slash_escaped", "parameters")},
    "a path of a URL leads elsewhere once the server has decoded it: {}",
    expect=REFUSED,
    reading=Reading(decodes=True),
    group="urllib_",
)


def by_library(library: str, path: str):
    def act(ground: Ground) -> object:
        return __import__(library).get(url(ground, path), timeout=LIMIT).text

    return act


for library in ("requests", "httpx2"):
    network_attacks_of(
        {"dots_escaped": by_library(library, PATHS["dots_escaped"])},
        f"a path of a URL for {library} leads elsewhere once the server has decoded it: {{}}",
        expect=REFUSED,
        reading=Reading(decodes=True),
        group=f"{library}_",
        needs=(library,),
    )
network_attacks_of(
    {
        name: by_client("/allowed", method)
        for name, method in {
            "POST": "POST",
            "DELETE": "DELETE",
            "lower_case": "post",
            "unknown": "FETCH",
            "web_dav": "PROPFIND",
            "lower_case_get": "get",
        }.items()
    },
    "a method that is not for reading is sent under a rule for reading: {}",
    expect=REFUSED,
    group="method_",
)


@network_attack("the path is an absolute URL of another server, which the server fetches", expect=REFUSED)
def absolute_path(ground: Ground) -> object:
    return by_client(f"http://127.0.0.1:{peers(ground).other}/secret")(ground)


@network_attack("the path of an absolute URL names a path that the rule does not cover", expect=REFUSED)
def absolute_own(ground: Ground) -> object:
    return by_client(url(ground, "/secret"))(ground)


@network_attack("the path has a line break, and with it a second request", expect=REFUSED)
def path_with_request(ground: Ground) -> object:
    """`http.client` checks for it; its check is a function that a subject can replace."""
    import http.client

    http.client.HTTPConnection._validate_path = lambda self, path: None
    return by_client(here(ground, "/allowed HTTP/1.1\r\nHost: HERE\r\n\r\nGET /secret").decode())(ground)


@network_attack("the method has a line break, and with it a second request", expect=REFUSED)
def method_with_request(ground: Ground) -> object:
    import http.client

    http.client.HTTPConnection._validate_method = lambda self, method: None
    method = here(ground, "GET /secret HTTP/1.1\r\nHost: HERE\r\n\r\nGET").decode()
    return by_client("/allowed", method)(ground)
