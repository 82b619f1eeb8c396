"""Adapters of the clients: installation, unchanged behavior, and raised errors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.guard.network.clients import CLIENTS
from tests.guard.network.harness import PLACES

CLIENT_FILE = str(Path(__file__).with_name("clients.py"))
OPTIONAL = ("requests", "urllib3", "httpx", "httpcore", "httpx2", "httpcore2", "aiohttp", "uvloop")
SHARED = ("urllib3", "requests", "httpx", "httpx2", "httpx async", "httpx2 async", "aiohttp")


# --- when ------------------------------------------------------------------------------------------------------------


def imported(world):
    """Return the errors for a wrong path with a client that was loaded before or after the guard, or by the subject."""
    client, moment, file = world.args
    makers, recipes = world.load(file)["CLIENTS"][client], {}

    def load():
        recipes.update({form: make(world.places["ca"]) for form, make in makers.items()})

    def ask():
        if moment == "inside":
            load()
        return {form: outcome(fetch, "GET", world.url("http", "/other")) for form, fetch in recipes.items()}

    if moment == "before":
        load()
    import democrai_sandbox.guard

    if moment == "after":
        world.guard().run(int)  # sealed
        load()
    return world.guard(rule(world.url("http", "/allowed"), "receive")).run(ask)


def loaded_by_us(world):
    """Return the client modules that are loaded after a guard was in force without using a client."""
    import sys

    before = set(sys.modules)
    world.guard().run(int)
    return sorted(set(sys.modules) - before)


def odd_modules(world):
    """Return the results of adapters for unexpected modules."""
    import logging
    import sys
    from importlib.machinery import ModuleSpec

    from democrai_sandbox.guard.clients import ADAPTERS

    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("democrai_sandbox.guard").addHandler(handler)
    answers = {}
    for name, install in ADAPTERS.items():
        module = type(sys)(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__spec__._initializing = True
        loading = install(module)
        module.__spec__._initializing = False
        before = len(told)
        answers[name] = [loading, install(module), len(told) > before]
        count = len(told)
        install(module)
        answers[name].append(len(told) == count)
    return answers


def forged(world):
    """Return what is called of forged client modules of a subject, and whether uvloop is adapted."""
    import asyncio
    import sys

    from democrai_sandbox import current_guard

    asked = []

    def subject():
        for name in ("aiohttp", "requests", "uvloop", "uvloop.loop"):
            fake = sys.modules[name] = type(sys)(name)
            fake.Loop = type("Loop", (), {"create_connection": None})
            fake.__getattr__ = lambda wanted: asked.append(current_guard() is not None)
        import colorsys  # an import triggers the adapters

        for name in ("aiohttp", "requests", "uvloop", "uvloop.loop"):
            del sys.modules[name]
        import uvloop

        return run_async(asyncio.open_connection(*world.address("tcp")), uvloop.new_event_loop)

    return {"dialled": outcome(world.guard().run, subject), "asked": sorted(set(asked))}


class TestWhen:
    @pytest.mark.parametrize("moment", ["before", "after", "inside"])
    @pytest.mark.parametrize("client", CLIENTS)
    def test_it_does_not_matter_when_a_client_is_imported(self, net, client, moment):
        """The URL is denied, not the connection, so the adapter was installed in time."""
        seen = net.run(imported, client, moment, CLIENT_FILE, fresh=moment == "inside")
        port = net.places["http"][1]
        assert set(seen.values()) == {f"denied receive http://127.0.0.1:{port}/other"}, seen

    def test_none_is_imported_by_the_guard(self, net):
        """They are optional, and unused ones cost nothing."""
        names = {"http.client", "urllib.request", "asyncio", "logging", *OPTIONAL}
        assert names.isdisjoint(net.run(loaded_by_us, fresh=True))

    def test_a_forged_module_gains_nothing(self, net):
        """Its code runs as the subject, and the real module is recognized later."""
        told = net.run(forged)
        assert told["asked"] == [True]
        assert told["dialled"] == "denied connect {}:{}".format(*net.places["tcp"])

    def test_an_unknown_version_is_told_of_once(self, net):
        """While a module is being imported the adapter waits; a missing method is left out with a warning."""
        answers = net.run(odd_modules)
        assert {name for name, answer in answers.items() if answer != [False, True, True, True]} == set()


# --- pools -----------------------------------------------------------------------------------------------------------


def shared(world):
    """Use one client of the host by the host and two subjects in turn; return the connection of each request."""
    client, place = world.args
    bundle, url = world.places["ca"], world.url(place, "/allowed")
    use = use_async if client.endswith("async") or client == "aiohttp" else use_sync
    turns = ["host", "one", "two", "one", "two", "host"]
    seen = use(client, bundle, url, turns, lambda who: world.guard(rule(url, "receive"), subject=who))
    return list(zip(turns, seen, strict=True))


def use_sync(client, bundle, url, turns, guard):
    ask, close = makers()[client](bundle, url)
    try:
        return [ask() if who == "host" else guard(who).run(ask) for who in turns]
    finally:
        close()


def use_async(client, bundle, url, turns, guard):
    import asyncio
    from functools import partial

    async def main():
        ask, close = makers()[client](bundle, url)
        try:
            return [await (ask if who == "host" else partial(guard(who).run, ask))() for who in turns]
        finally:
            await close()

    return asyncio.run(main())


def makers():
    """Return for each client a shared instance, a fetch of its connection number, and its close function."""
    import ssl

    def urllib3(bundle, url):
        import urllib3

        pools = urllib3.PoolManager(ca_certs=bundle)
        return lambda: pools.request("GET", url).json()["peer"], pools.clear

    def requests(bundle, url):
        import requests

        session = requests.Session()
        session.trust_env, session.verify = False, bundle
        return lambda: session.get(url).json()["peer"], session.close

    def httpx(library):
        def make(bundle, url):
            client = __import__(library).Client(verify=ssl.create_default_context(cafile=bundle))
            return lambda: client.get(url).json()["peer"], client.close

        return make

    def httpx_async(library):
        def make(bundle, url):
            client = __import__(library).AsyncClient(verify=ssl.create_default_context(cafile=bundle))

            async def ask():
                return (await client.get(url)).json()["peer"]

            return ask, client.aclose

        return make

    def aiohttp(bundle, url):
        import aiohttp

        context = ssl.create_default_context(cafile=bundle)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))

        async def ask():
            async with session.get(url) as response:
                return (await response.json())["peer"]

        return ask, session.close

    made = {"urllib3": urllib3, "requests": requests, "aiohttp": aiohttp}
    for library in ("httpx", "httpx2"):
        made |= {library: httpx(library), f"{library} async": httpx_async(library)}
    return made


def many_subjects(world):
    """Use one client of the host by very many subjects; return the number of open connections."""
    import os
    import ssl

    url = world.url("http", "/allowed")
    left = {}
    for client in ("urllib3", "requests", "httpx", "httpx2"):
        before = len(os.listdir("/proc/self/fd"))
        ask, close = makers()[client](world.places["ca"], url)
        for number in range(world.args[0]):
            world.guard(rule(url, "receive"), subject=f"subject{number}").run(ask)
        open_now = len(os.listdir("/proc/self/fd")) - before
        close()
        left[client] = [open_now, len(os.listdir("/proc/self/fd")) - before]
    return left


def known_names(world):
    """Use a session of the host that has looked up a name, by subjects in turn and concurrently."""
    import asyncio

    import aiohttp

    url = "http://api.example.com/allowed"

    async def main():
        async with aiohttp.ClientSession() as session:

            async def ask():
                async with session.get(url) as response:
                    return response.status

            def subject(who, allowed=url):
                return told(world.guard(rule(allowed, "receive"), subject=who).run(ask))

            seen = [await told(ask()), await subject("one"), await subject("two")]
            return seen + await asyncio.gather(subject("three"), subject("four", "http://other.example.com"))

    async def told(awaitable):
        try:
            return await awaitable
        except Exception as error:
            return tell(error)

    return asyncio.run(main())


def changing_url(world):
    """Ask with a request whose URL is another object each time, then by another subject with one of these URLs."""
    import asyncio
    from types import SimpleNamespace

    import aiohttp
    from yarl import URL

    base = world.url("http")
    allowed, other = URL(f"{base}/allowed"), URL(f"{base}/other")

    class Odd:
        method, headers = "GET", {}

        def __init__(self):
            self._left = [other, other, allowed, allowed]

        url = property(lambda self: self._left.pop())

    async def main():
        async with aiohttp.ClientSession() as session:

            async def check(request):
                session.connector.connect(request, [], aiohttp.ClientTimeout()).close()
                return "passed"

            async def told(who, path, request):
                try:
                    return await world.guard(rule(f"{base}{path}", "receive"), subject=who).run(check, request)
                except Exception as error:
                    return tell(error).replace(base, "")

            plain = SimpleNamespace(url=other, method="GET", headers={})
            return [await told("one", "/allowed", Odd()), await told("two", "/other", plain)]

    return asyncio.run(main())


class TestPools:
    @pytest.mark.once  # concerns the client alone
    def test_a_changing_url_does_not_change_the_check_of_others(self, net):
        """A URL is checked by its own text, whichever request was checked before."""
        assert net.run(changing_url, loaded=True) == ["passed", "passed"]

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("client", SHARED)
    def test_connections_are_kept_apart(self, net, client, place):
        """Each gets a reply over a separate connection, which it reuses."""
        turns = net.run(shared, client, place, loaded=True)
        by_whom = {}
        for who, connection in turns:
            by_whom.setdefault(who, set()).add(connection)
        assert [len(connections) for connections in by_whom.values()] == [1, 1, 1], turns
        assert len(set.union(*by_whom.values())) == 3, turns

    @pytest.mark.once  # concerns the client alone
    @pytest.mark.parametrize("client", SHARED)
    def test_without_guards_there_is_one_connection(self, net, client):
        """Only guards separate the connections."""
        assert len({connection for _, connection in net.run(shared, client, "http", guarded=False, loaded=True)}) == 1

    @pytest.mark.once  # the core checks lookups
    def test_names_are_looked_up_by_each_for_itself(self, town):
        """Lookups of others in a shared client neither help nor hinder a subject."""
        seen = town.run(known_names, zone={"api.example.com": {"A": ["203.0.113.5"]}}, loaded=True)
        assert seen == [200, 200, 200, 200, "denied receive http://api.example.com/allowed"]

    @pytest.mark.once  # counts what the adapters keep, the same way on each interpreter
    def test_they_do_not_pile_up(self, net):
        """Surplus connections of subjects are closed; the others end with the client."""
        for client, (most, left) in net.run(many_subjects, 60, loaded=True).items():
            assert most <= 40, client
            assert left <= 1, client  # urandom


# --- raised errors
# -----------------------------------------------------------------------------------------------------


def through_proxy(world):
    """Return the errors of allowed requests through an undeclared proxy, which is denied below the client."""
    import asyncio
    import ssl
    import urllib.request

    import aiohttp
    import httpx
    import httpx2
    import requests
    import urllib3

    place = world.args[0]
    url, proxy, bundle = world.url(place, "/allowed"), world.url("proxy"), world.places["ca"]
    context = ssl.create_default_context(cafile=bundle)

    def by_urllib():
        handlers = urllib.request.ProxyHandler({place: proxy}), urllib.request.HTTPSHandler(context=context)
        with urllib.request.build_opener(*handlers).open(url) as response:
            return response.status

    def by_requests():
        with requests.Session() as session:
            session.trust_env = False
            return session.get(url, proxies={place: proxy}, verify=bundle).status_code

    def by_urllib3():
        with urllib3.ProxyManager(proxy, ca_certs=bundle) as pools:
            return pools.request("GET", url).status

    def by(library):
        def ask():
            with library.Client(proxy=proxy, verify=context) as client:
                return client.get(url).status_code

        return ask

    def by_async(library):
        async def ask():
            async with library.AsyncClient(proxy=proxy, verify=context) as client:
                return (await client.get(url)).status_code

        return ask

    async def by_aiohttp():
        async with aiohttp.ClientSession() as session, session.get(url, proxy=proxy, ssl=context) as response:
            return response.status

    actions = {"urllib": by_urllib, "requests": by_requests, "urllib3": by_urllib3, "aiohttp": by_aiohttp}
    for library in (httpx, httpx2):
        actions |= {library.__name__: by(library), f"{library.__name__} async": by_async(library)}
    rules = [rule(url, "receive"), *(rule(*one) for one in world.args[1])]
    return world.under(rules, actions)


def approved(world):
    """Return each client's result with a decider that approves one request."""
    from democrai_sandbox import configure_guard

    file, place = world.args
    url = world.url(place, "/approved")

    class Approving:
        def decide(self, question):
            return (question.operation, question.target) == ("receive", url)

    configure_guard(decider=Approving())
    return {name: told if isinstance(told, str) else told[0] for name, told in every_client(world, file, url).items()}


def failing_check(world):
    """Return each client's result with a failing decider."""
    from democrai_sandbox import configure_guard

    class Broken:
        def decide(self, question):
            raise OSError("no answer")

    configure_guard(decider=Broken())
    return every_client(world, world.args[0], world.url("http", "/allowed"))


def every_client(world, file, url):
    """Return the result of each client and entry point for one URL, in a guard that allows nothing."""
    seen = {}
    for client, forms in world.load(file)["CLIENTS"].items():
        for form, recipe in forms.items():
            fetch = recipe(world.places["ca"])
            seen[f"{client} {form}"] = world.guard().run(outcome, fetch, "GET", url)
    return seen


def while_handling(world):
    """Return the error of a refused connection that the subject opens while it handles a denial."""
    from democrai_sandbox.errors import NetworkDenied

    file, url = world.args
    seen = {}

    def ask(fetch):
        try:
            raise NetworkDenied("something else")
        except NetworkDenied:
            return outcome(fetch, "GET", url)

    for client, forms in world.load(file)["CLIENTS"].items():
        for form, recipe in forms.items():
            fetch = recipe(world.places["ca"])
            seen[f"{client} {form}"] = world.guard(rule(url, "receive")).run(ask, fetch)
    return seen


class TestWhatComesOut:
    @pytest.mark.parametrize("place", PLACES)
    def test_a_denial_below_a_client_comes_out_as_itself(self, net, place):
        """The denial is not wrapped in a URLError, ConnectionError, MaxRetryError or ConnectError."""
        told = net.run(through_proxy, place, [], loaded=True)
        proxy = "{}:{}".format(*net.places["proxy"])
        assert set(told["seen"].values()) == {f"denied connect {proxy}"}, told["seen"]
        assert told["arrived"] == []

    @pytest.mark.parametrize("place", PLACES)
    def test_with_a_rule_for_the_proxy_they_are_answered(self, net, place):
        """So the proxy was denied."""
        told = net.run(through_proxy, place, [["{}:{}".format(*net.places["proxy"]), "connect"]], loaded=True)
        assert set(told["seen"].values()) == {200}, told["seen"]

    @pytest.mark.parametrize("place", PLACES)
    def test_an_approval_of_the_url_is_enough(self, net, place):
        """The connection of the approved request needs no further question."""
        assert set(net.run(approved, CLIENT_FILE, place, loaded=True).values()) == {200}

    def test_a_failed_check_comes_out_as_itself(self, net):
        """It is neither a denial nor an error of the client."""
        assert set(net.run(failing_check, CLIENT_FILE, loaded=True).values()) == {"ExternalAccessCheckFailed"}

    def test_an_error_of_the_network_stays_the_clients(self, net, free_port):
        """This also applies if the subject was handling a denial, which is then in the chain of contexts."""
        seen = net.run(while_handling, CLIENT_FILE, f"http://127.0.0.1:{free_port}/allowed", loaded=True)
        assert {name: told for name, told in seen.items() if told.startswith("denied ")} == {}
        kinds = {name.partition(" ")[0]: told.partition(":")[0] for name, told in seen.items()}
        assert kinds == {
            "urllib.request": "URLError",
            "http.client": "ConnectionRefusedError",
            "requests": "ConnectionError",
            "urllib3": "MaxRetryError",
            "httpx": "ConnectError",
            "httpx2": "ConnectError",
            "aiohttp": "ClientConnectorError",
        }


# --- websockets ------------------------------------------------------------------------------------------------------


def websockets(world):
    """Return the result of each operation on a websocket that sends a greeting."""
    client, operations = world.args
    url = world.url("http", "/allowed/socket").replace("http", "ws", 1)
    recipes = {"aiohttp": by_aiohttp, "httpx2": by_httpx2, "httpx2 async": by_httpx2_async}
    return world.under([rule(url, *operations)], {"all": lambda: recipes[client](f"{url}?greet")})


async def by_aiohttp(url):
    import aiohttp

    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        return await in_turn(
            {
                "greeting": lambda: socket.receive_str(timeout=5),
                "text": lambda: socket.send_str("abc"),
                "bytes": lambda: socket.send_bytes(b"abc"),
                "json": lambda: socket.send_json({}),
                "ping": lambda: socket.ping(),
            }
        )


def by_httpx2(url):
    import httpx2

    with httpx2.Client(verify=False) as client, client.websocket(url) as socket:
        return outcomes(
            {
                "greeting": lambda: socket.receive_text(5),
                "text": lambda: socket.send_text("abc"),
                "bytes": lambda: socket.send_bytes(b"abc"),
                "json": lambda: socket.send_json({}),
                "ping": lambda: socket.ping() and None,
            }
        )


async def by_httpx2_async(url):
    import httpx2

    async with httpx2.AsyncClient(verify=False) as client, client.websocket(url) as socket:
        return await in_turn(
            {
                "greeting": lambda: socket.receive_text(5),
                "text": lambda: socket.send_text("abc"),
                "bytes": lambda: socket.send_bytes(b"abc"),
                "json": lambda: socket.send_json({}),
                "ping": lambda: socket.ping(),
            }
        )


async def in_turn(actions):
    seen = {}
    for name, action in actions.items():
        try:
            result = await action()
            seen[name] = result if isinstance(result, str) else "ok"
        except Exception as error:
            seen[name] = tell(error)
    return seen


@pytest.mark.parametrize("client", ["aiohttp", "httpx2", "httpx2 async"])
class TestWebsockets:
    @pytest.fixture(autouse=True)
    def _installed(self, client):
        if client != "aiohttp" and find_spec("wsproto") is None:
            pytest.skip("httpx2 has no websockets without wsproto")

    def test_opening_one_is_connecting(self, net, client):
        """Receiving from its URL is another operation, and so is the same URL over HTTP."""
        url = f"ws://127.0.0.1:{net.places['http'][1]}/allowed/socket"
        told = net.run(websockets, client, ["receive", "send"], loaded=True)
        assert told["seen"] == {"all": f"denied connect {url}"}
        assert told["arrived"] == []

    @pytest.mark.parametrize("operation", ["receive", "send"])
    def test_each_direction_is_checked(self, net, client, operation):
        """Keep-alive messages pass in both directions."""
        url = f"ws://127.0.0.1:{net.places['http'][1]}/allowed/socket"
        seen = net.run(websockets, client, ["connect", operation], loaded=True)["seen"]["all"]
        sent = "ok" if operation == "send" else f"denied send {url}"
        received = "hello" if operation == "receive" else f"denied receive {url}"
        assert seen == {"greeting": received, "text": sent, "bytes": sent, "json": sent, "ping": "ok"}

    def test_with_both_directions_all_of_it_works(self, net, client):
        """Nothing else is asked for."""
        seen = net.run(websockets, client, ["connect", "receive", "send"], loaded=True)["seen"]["all"]
        assert seen == {"greeting": "hello", "text": "ok", "bytes": "ok", "json": "ok", "ping": "ok"}


# --- unchanged behavior
# ------------------------------------------------------------------------------------------------


def looks(world):
    """Return the appearance and behavior of adapted classes, with and without the guard."""
    import asyncio
    import inspect
    import pickle

    import aiohttp
    import httpx
    import httpx2
    import requests
    import urllib3
    import uvloop

    if world.args[0]:
        world.guard().run(int)
    from http.client import HTTPConnection

    methods = {
        "putrequest": HTTPConnection.putrequest,
        "requests": requests.Session.send,
        "urllib3": urllib3.HTTPConnectionPool.urlopen,
        "httpx": httpx.AsyncClient._send_single_request,
        "httpx2": httpx2.Client._send_single_request,
        "aiohttp": aiohttp.ClientSession._request,
        "loop": asyncio.BaseEventLoop.create_connection,
    }
    kinds = {
        name: [str(inspect.signature(method)), inspect.iscoroutinefunction(method), method.__qualname__, method.__doc__]
        for name, method in methods.items()
    }
    url = world.url("http", "/any")

    class Session(requests.Session):
        def send(self, request, **kwargs):
            request.headers["X-Own"] = "yes"
            return super().send(request, **kwargs)

    class Client(httpx2.Client):
        def send(self, request, **kwargs):
            request.headers["X-Own"] = "yes"
            return super().send(request, **kwargs)

    with pickle.loads(pickle.dumps(requests.Session())) as copied, Session() as session, Client() as client:
        answers = [copied.get(url).status_code, *(one.get(url).json()["headers"]["x-own"] for one in (session, client))]
    natives = [asyncio.iscoroutinefunction(getattr(uvloop.Loop, name)) for name in ("create_connection", "call_soon")]
    return {"kinds": kinds, "answers": answers, "natives": natives}


def custom(world):
    """Return the results of custom transports and adapters, and of entry points below the usual ones."""
    import http.client
    import ssl

    import httpcore2
    import httpx
    import httpx2
    import requests
    import urllib3

    allowed, other = world.url("http", "/allowed"), world.url("http", "/other")

    def mocked(library):
        def ask(url):
            transport = library.MockTransport(lambda request: library.Response(200))
            with library.Client(transport=transport) as client:
                return client.get(url).status_code

        return ask

    class Canned(requests.adapters.BaseAdapter):
        def send(self, request, **kwargs):
            response = requests.Response()
            response.status_code, response.request, response.url = 200, request, request.url
            return response

        def close(self):
            pass

    def mounted(url):
        with requests.Session() as session:
            session.mount("http://", Canned())
            return session.get(url).status_code

    class Dialing(Canned):
        def send(self, request, **kwargs):
            connection(request.url)
            return super().send(request, **kwargs)

    def mounted_to_dial(url):
        with requests.Session() as session:
            session.mount("http://", Dialing())
            return session.get(url).status_code

    class Wrapped(httpx2.BaseTransport):
        def handle_request(self, request):
            return httpx2.HTTPTransport().handle_request(request)

    def wrapped(url):
        with httpx2.Client(transport=Wrapped()) as client:
            return client.get(url).status_code

    def own_scheme(url):
        with requests.Session() as session:
            session.mount("canned://", Canned())
            return session.get(url.replace("http:", "canned:")).status_code

    def other_target(url):
        with httpx2.Client() as client:
            return client.get(allowed, extensions={"target": url.encode()}).status_code

    def pool(url):
        with httpcore2.ConnectionPool() as made:
            return made.request("GET", url).status

    def connection(url):
        made = urllib3.connection.HTTPConnection(*world.address("http"))
        made.request("GET", urllib3.util.parse_url(url).path)
        response = made.getresponse()
        made.close()
        return response.status

    def whole_url(url):
        made = http.client.HTTPConnection(*world.address("http"))
        made.request("GET", url)
        with made.getresponse() as response:
            return response.status

    ways = {
        "httpx mock": mocked(httpx),
        "httpx2 mock": mocked(httpx2),
        "requests adapter": mounted,
        "dialing adapter": mounted_to_dial,
        "wrapped transport": wrapped,
        "own scheme": own_scheme,
        "other target": other_target,
        "httpcore pool": pool,
        "urllib3 connection": connection,
        "whole URL": whole_url,
    }
    actions = {
        f"{name}, {word}": (lambda way=way, url=url: way(url))
        for name, way in ways.items()
        for word, url in (("allowed", allowed), ("other", other))
    }
    return world.under([rule(allowed, "receive")], actions)["seen"]


class TestWhatTheyLeaveAlone:
    def test_adapted_classes_look_and_work_the_same(self, net):
        """Names, docstrings, signatures, coroutine functions, pickling, subclasses."""
        assert net.run(looks, True) == net.run(looks, False)

    def test_whatever_carries_a_request_out(self, net):
        """Custom transports are checked where they connect; those in memory are not."""
        seen = net.run(custom, loaded=True)
        denied = f"denied receive http://127.0.0.1:{net.places['http'][1]}/other"
        in_memory = ("httpx mock, other", "httpx2 mock, other", "requests adapter, other", "own scheme, other")
        expected = {name: denied if name.endswith("other") else 200 for name in seen} | dict.fromkeys(in_memory, 200)
        assert seen == expected


# --- uvloop ----------------------------------------------------------------------------------------------------------


def on_uvloop(world):
    """Run a subject on a uvloop loop, next to its host."""
    import asyncio
    import contextvars
    import sys

    import uvloop
    import uvloop.loop

    peer = world.address("tcp")
    other = world.address("sink")
    hosts = contextvars.copy_context()

    async def kind(connect):
        transport, _ = await connect(asyncio.Protocol, *peer)
        transport.close()
        return type(transport).__module__.partition(".")[0]

    async def said(awaitable):
        try:
            return str(await awaitable)
        except Exception as error:
            return tell(error)

    async def in_context(schedule):
        done = asyncio.get_running_loop().create_future()
        schedule(lambda: done.set_result(world.can_read()), context=hosts)
        return await done

    async def handled(loop, setter):
        """Run a handler of the subject later, as the host would."""
        setter(lambda loop, context: results.append(world.can_read()))

    results = []

    async def subject(loop):
        native = uvloop.loop.Loop
        return {
            "peer": await kind(loop.create_connection),
            "native": await said(native.create_connection(loop, asyncio.Protocol, *other)),
            "super": await said(super(uvloop.Loop, loop).create_connection(asyncio.Protocol, *other)),
            "name": await said(native.getaddrinfo(loop, "elsewhere.example.com", 80)),
            "child": await said(loop.subprocess_exec(asyncio.SubprocessProtocol, sys.executable, "-c", "")),
            "native child": await said(
                native.subprocess_exec(loop, asyncio.SubprocessProtocol, sys.executable, "-c", "")
            ),
            "file": outcome(native._monitor_fs, loop, world.secret, print),
            "call_soon": await in_context(loop.call_soon),
            "call_soon, native": await in_context(lambda *args, **more: native.call_soon(loop, *args, **more)),
            "call_soon_threadsafe": await in_context(loop.call_soon_threadsafe),
            "call_later": await in_context(lambda *args, **more: loop.call_later(0.001, *args, **more)),
            "call_at": await in_context(lambda *args, **more: loop.call_at(loop.time(), *args, **more)),
            "handler": await said(handled(loop, loop.set_exception_handler)),
        }

    async def main():
        loop = asyncio.get_running_loop()
        seen = await world.guard(rule("{}:{}".format(*peer), "connect")).run(subject, loop)
        loop.call_exception_handler({"message": "as the host"})
        return seen | {"host": await kind(loop.create_connection), "handler": results}

    return run_async(main(), uvloop.new_event_loop)


class TestUvloop:
    def test_a_subject_does_not_get_to_libuv(self, net):
        """Its connections are asyncio's, by every name that it calls; the host's are still libuv's."""
        seen = net.run(on_uvloop, loaded=True)
        sink = "{}:{}".format(*net.places["sink"])
        assert seen.pop("host") == "uvloop"
        assert seen.pop("peer") == "asyncio"
        assert seen.pop("native") == seen.pop("super") == f"denied connect {sink}"
        assert seen.pop("name").startswith("denied connect elsewhere.example.com")
        assert seen.pop("child") == seen.pop("native child") == "SubprocessDenied"
        assert seen.pop("file").startswith("NotImplementedError")
        assert seen.pop("handler") == ["FilesystemDenied"]
        assert set(seen.values()) == {"FilesystemDenied"}, seen

    @pytest.mark.once  # concerns uvloop alone
    def test_without_a_guard_everything_is_libuvs(self, net):
        """The calls themselves work."""
        seen = net.run(on_uvloop, guarded=False)
        assert seen["host"] == seen["peer"] == "uvloop"
        assert seen["call_soon"] == "ok"
        assert seen["handler"] == ["ok"]
