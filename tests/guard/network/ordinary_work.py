"""Bodies of the ordinary work: its manifest, and each piece in a separate guard."""

from __future__ import annotations


def manifest(world):
    """Return the manifest of a module that does all this."""
    everything = ("connect", "receive", "send")
    origins = ("http", "https", "http2")
    rules = [rule(world.url(place, "/work"), "receive", "send") for place in origins]
    rules.append(rule(world.url("http", "/work").replace("127.0.0.1", "localhost"), "receive", "send"))
    rules += [
        rule(world.url(place, "/work/socket").replace("http", "ws", 1), *everything) for place in ("http", "https")
    ]
    return rules + [rule(world.at(place), "connect") for place in ("proxy", "mail", "tcp", "tls")]


def work(world):
    """Run each piece of work in a separate guard."""
    files, by_host = world.args
    rules, told = manifest(world), {}
    for file, names in files.items():
        pieces = world.load(file)
        for name in names:
            # Passive FTP and own servers use ports that are not known in advance: a rule for the host.
            more = [rule("127.0.0.1", "connect", "receive", "send")] if name in by_host else []
            told[name] = world.guard(*rules, *more).run(attempt, pieces[name], world)
    return told


def work_undeclared(world):
    """Run each piece in a guard without declarations and return the errors."""
    world.journal()
    told = {}
    for file, names in world.args[0].items():
        pieces = world.load(file)
        told |= {name: world.guard().run(attempt, pieces[name], world) for name in names}
    return {name: outcome.strip().rpartition("\n")[2] for name, outcome in told.items()}, world.journal()


def attempt(piece, world):
    """Run a piece; return `ok`, or where and how it failed."""
    import traceback

    try:
        result = piece(world)
        if hasattr(result, "__await__"):
            run_async(result)
    except Exception:
        return traceback.format_exc()[-1500:]
    return "ok"


def by_name(world):
    """Run the usual work against a host name, over TLS, with several addresses."""
    import asyncio

    import aiohttp
    import httpx2
    import requests

    url = "https://api.example.com/work/x"
    context = world.tls()

    def with_requests():
        with requests.Session() as session:
            session.verify = world.places["ca"]
            return [session.get(url).status_code for _ in range(3)]

    def with_httpx2():
        with httpx2.Client(verify=context) as client:
            return [client.get(url).status_code for _ in range(3)]

    async def with_aiohttp():
        async with aiohttp.ClientSession() as session:

            async def status():
                async with session.get(url, ssl=context) as response:
                    return response.status

            return await asyncio.gather(*(status() for _ in range(3)))

    actions = {"requests": with_requests, "httpx2": with_httpx2, "aiohttp": with_aiohttp}
    return world.under([rule("https://api.example.com/work", "receive")], actions)["seen"]
