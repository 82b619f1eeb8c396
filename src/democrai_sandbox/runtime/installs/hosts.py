"""Package hosts of pip's effective configuration, as rules of an install guard and as pip's variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from democrai_sandbox.policy import AccessRule, InvalidInputError, Operation, ResourceType, normalise_target
from democrai_sandbox.runtime.inherited import host_environment

from .interface import InstallFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .pip import PipConfiguration

_WEB = ("http", "https")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# "/", a top-level folder, and the index itself: the parent of a shallower index may contain anything.
_LEAST_DEPTH = 3


def package_rules(configuration: PipConfiguration) -> tuple[AccessRule, ...]:
    """Return the rules that pip needs beyond the environment itself: receive from its hosts, read its local folders.

    Scheme, host and port are fixed. Links in an index may lead to other hosts: the file host of the default index is
    known; for another index the extension declares them, or they are configured as trusted hosts.
    """
    found: dict[AccessRule, None] = {}
    for place in _places(configuration):
        found[_rule_for(place)] = None
    for host in configuration.trusted_hosts:
        for scheme in _WEB:
            found[_network(Operation.RECEIVE, f"{scheme}://{host}")] = None
    for proxy in _proxies(configuration):
        found[_network(Operation.CONNECT, _origin(proxy))] = None
    for file in (configuration.cert, configuration.client_cert, *_certificates().values(), *configuration.constraints):
        if file:
            found[_rule_for(file)] = None
    return tuple(found)


def pip_variables(configuration: PipConfiguration) -> dict[str, str]:
    """Return the complete configuration as pip's variables, because pip in the guard reads no file of the host."""
    listed = {
        "PIP_EXTRA_INDEX_URL": configuration.extra_index_urls,
        "PIP_FIND_LINKS": tuple(map(_as_url, configuration.find_links)),
        "PIP_TRUSTED_HOST": configuration.trusted_hosts,
        "PIP_CONSTRAINT": tuple(map(_as_url, configuration.constraints)),
        "PIP_NO_BINARY": tuple(item for item in configuration.no_binary),
        "PIP_ONLY_BINARY": tuple(item for item in configuration.only_binary),
    }
    single = {
        "PIP_INDEX_URL": configuration.index_url,
        "PIP_PROXY": configuration.proxy,
        "PIP_CERT": configuration.cert or "",
        "PIP_CLIENT_CERT": configuration.client_cert or "",
        "PIP_DEFAULT_TIMEOUT": f"{configuration.timeout:g}",
        "PIP_RETRIES": str(configuration.retries),
        "PIP_NO_INDEX": "1" if configuration.no_index else "",
        "PIP_PREFER_BINARY": "1" if configuration.prefer_binary else "",
        "PIP_PRE": "1" if configuration.pre else "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_NO_COLOR": "1",
        "PIP_KEYRING_PROVIDER": "disabled",
    }
    made = {name: " ".join(values) for name, values in listed.items()}
    return {name: value for name, value in {**made, **single, **_proxy_variables(), **_certificates()}.items() if value}


def _certificates() -> dict[str, str]:
    """Return the variables of the host that name its certificates."""
    return {name: value for name in _CERTIFICATES if (value := host_environment().get(name))}


def _places(configuration: PipConfiguration) -> Iterator[str]:
    yield from configuration.find_links
    if configuration.no_index:
        return
    yield configuration.index_url
    yield from configuration.extra_index_urls
    default = urlsplit(configuration.default_index).hostname
    if default in {urlsplit(url).hostname for url in (configuration.index_url, *configuration.extra_index_urls)}:
        yield configuration.default_files


def _rule_for(place: str) -> AccessRule:
    parts = urlsplit(place)
    if parts.scheme in _WEB:
        return _network(Operation.RECEIVE, _origin(place))
    if parts.scheme == "file":
        return _read(_local_index(unquote(parts.path)))
    if "://" in place:
        raise InstallFailed(f"pip is configured with an unsupported location: {parts.scheme}://{parts.hostname}")
    return _read(place)


def _read(path: str) -> AccessRule:
    absolute = str(Path(path).expanduser().absolute())
    normal = normalise_target(ResourceType.FILESYSTEM, absolute)
    return AccessRule(ResourceType.FILESYSTEM, Operation.READ, absolute, normal)


def _local_index(path: str) -> str:
    """Return the readable folder of a local index: pages in a folder named simple link to files beside that folder."""
    folder = Path(path)
    enough = len(folder.parts) > _LEAST_DEPTH
    return str(folder.parent) if folder.name == "simple" and enough else path


def _network(operation: Operation, target: str) -> AccessRule:
    try:
        return AccessRule(ResourceType.NETWORK, operation, target, normalise_target(ResourceType.NETWORK, target))
    except InvalidInputError as error:
        raise InstallFailed(f"pip is configured with an invalid host: {error}") from error


def _origin(url: str) -> str:
    """Return scheme, host and port, without the password, which is never part of a rule."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _as_url(place: str) -> str:
    """Return a path as a URL, because pip's variables separate list items with spaces."""
    if "://" in place:
        return place
    return "file://" + quote(str(Path(place).expanduser().absolute()))


def _proxies(configuration: PipConfiguration) -> Iterator[str]:
    found = [configuration.proxy] if configuration.proxy else []
    found += [url for scheme, url in _given_proxies().items() if scheme in ("http", "https", "all")]
    for url in found:
        yield url if "://" in url else f"http://{url}"


def _given_proxies() -> dict[str, str]:
    """Return the proxies of the host's environment by scheme, like urllib: names in lower case take precedence."""
    given = host_environment().items()
    found = {name.lower()[:-6]: value for name, value in given if name.lower().endswith("_proxy")}
    found |= {name.lower()[:-6]: value for name, value in given if name.endswith("_proxy")}
    return {scheme: value for scheme, value in found.items() if value}


def _proxy_variables() -> dict[str, str]:
    return {f"{scheme}_proxy": url for scheme, url in _given_proxies().items() if scheme in (*_WEB, "all", "no")}
