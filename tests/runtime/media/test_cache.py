"""The module can write to the cache folder: its own files are never served, and links are not followed."""

from __future__ import annotations

import asyncio
import os

from democrai_sandbox.runtime.media.cache import FOLDER, LONGEST_LIFETIME, CacheEntry, MediaCache, lifetime
from tests.services.rows import rows

STAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "media_host.py")
KEY = b"k" * 32


def make(home, module="gallery", key=KEY, most=10_000, entry=4_000):
    return MediaCache(str(home), module, key, most_bytes=most, entry_bytes=entry)


def picture(url="http://a/1", body=b"body", accept="*/*"):
    return CacheEntry(url, accept, (url,), {"etag": '"1"'}, 10.0, body)


def files(home):
    return sorted((home / FOLDER).iterdir())


def test_what_is_stored_is_loaded_again_by_url_and_accept(tmp_path):
    """Another URL, another Accept header, another module or another key find nothing."""
    cache = make(tmp_path)
    cache.store(picture())
    assert cache.load("http://a/1", "*/*") == picture()
    assert cache.load("http://a/2", "*/*") is None
    assert cache.load("http://a/1", "image/png") is None
    assert make(tmp_path, module="other").load("http://a/1", "*/*") is None
    assert make(tmp_path, key=b"other").load("http://a/1", "*/*") is None
    (stored,) = files(tmp_path)
    assert stored.stat().st_mode & 0o777 == 0o600
    assert stored.name.removesuffix(".media").isalnum()


@rows(
    "change",
    [
        lambda data: data[:-1] + b"X",
        lambda data: data[:-1],
        lambda data: data + b"more",
        lambda data: data.replace(b"etag", b"ETag"),
        lambda data: b"",
        lambda data: b"0" * 64 + data[64:],
        lambda data: b"\n" * 100,
        lambda data: os.urandom(200),
        lambda data: b"x" * 200_000,
    ],
)
def test_an_entry_that_was_touched_is_no_entry(tmp_path, change):
    """Length, body, headers and hash: after any change by the module, the server is asked instead."""
    cache = make(tmp_path)
    cache.store(picture())
    assert cache.load("http://a/1", "*/*") == picture()
    (stored,) = files(tmp_path)
    stored.write_bytes(change(stored.read_bytes()))
    assert cache.load("http://a/1", "*/*") is None
    cache.store(picture())
    assert cache.load("http://a/1", "*/*") == picture()


def test_an_entry_under_another_name_is_no_entry(tmp_path):
    """The host's entry for one URL is not used for another."""
    cache = make(tmp_path)
    cache.store(picture("http://a/1"))
    (first,) = files(tmp_path)
    cache.store(picture("http://a/2", b"other"))
    second = next(path for path in files(tmp_path) if path != first)
    second.write_bytes(first.read_bytes())
    assert cache.load("http://a/2", "*/*") is None


def test_links_pipes_and_folders_in_place_of_entries_lead_nowhere(tmp_path):
    """The host may read everything: it must not do so through a link of the module."""
    outside = tmp_path / "outside"
    outside.mkdir()
    home = tmp_path / "home"
    cache = make(home)
    cache.store(picture())
    (stored,) = files(home)
    elsewhere = outside / "kept"
    stored.rename(elsewhere)
    stored.symlink_to(elsewhere)
    assert cache.load("http://a/1", "*/*") is None
    stored.unlink()
    os.mkfifo(stored)
    assert cache.load("http://a/1", "*/*") is None
    stored.unlink()
    stored.mkdir()
    assert cache.load("http://a/1", "*/*") is None
    cache.store(picture())  # a folder is in the way: nothing is stored, and nothing fails
    assert cache.load("http://a/1", "*/*") is None
    assert [path.name for path in files(home)] == [stored.name]
    stored.rmdir()
    (home / FOLDER).rmdir()
    (home / FOLDER).symlink_to(outside)
    before = sorted(os.listdir(outside))
    cache.store(picture())
    assert cache.load("http://a/1", "*/*") is None
    assert sorted(os.listdir(outside)) == before
    (home / FOLDER).unlink()
    home.rmdir()
    home.symlink_to(outside)  # its whole data folder
    cache.store(picture())
    assert sorted(os.listdir(outside)) == before


def test_the_cache_keeps_its_size_and_drops_what_was_used_least_recently(tmp_path):
    """Old entries make room for newer ones, files of the module stay, too large entries are not stored."""
    cache = make(tmp_path, most=3_600, entry=1_000)
    for number in range(3):
        cache.store(picture(f"http://a/{number}", b"x" * 900))
        for path in files(tmp_path):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
    (tmp_path / FOLDER / "notes.txt").write_text("mine")
    (tmp_path / FOLDER / "left.draft").write_text("of a crash")
    assert cache.load("http://a/0", "*/*") is not None
    cache.store(picture("http://a/3", b"x" * 900))
    assert [cache.load(f"http://a/{number}", "*/*") is not None for number in range(4)] == [True, False, True, True]
    cache.store(picture("http://a/9", b"x" * 1_001))
    assert cache.load("http://a/9", "*/*") is None
    names = [path.name for path in files(tmp_path)]
    assert "notes.txt" in names
    assert "left.draft" not in names


@rows(
    ("status", "headers", "expected"),
    [
        (200, {"cache-control": "max-age=60"}, 60),
        (200, {"cache-control": "private, max-age=60"}, 60),
        (200, {"cache-control": "Max-Age=60", "age": "50"}, 10),
        (200, {"cache-control": "max-age=60", "age": "90", "etag": "x"}, 0),
        (200, {"cache-control": "max-age=9999999999"}, LONGEST_LIFETIME),
        (200, {"cache-control": "no-store, max-age=60"}, None),
        (200, {"cache-control": "no-cache", "etag": "x"}, 0),
        (200, {"cache-control": "no-cache"}, None),
        (200, {"cache-control": "max-age=-5"}, None),
        (200, {}, None),
        (200, {"last-modified": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0),
        (200, {"expires": "Sun, 06 Nov 1994 08:50:37 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 60),
        (200, {"expires": "0", "date": "yesterday"}, None),
        (200, {"cache-control": "max-age=60", "vary": "*"}, None),
        (200, {"cache-control": "max-age=60", "vary": "Accept"}, 60),
        (206, {"cache-control": "max-age=60"}, None),
        (404, {"cache-control": "max-age=60"}, None),
    ],
)
def test_lifetimes_follow_the_headers(status, headers, expected):
    """max-age before Expires, no-store before all, and nothing without a lifetime or a tag."""
    assert lifetime(status, headers) == expected


def open_stage(world, **limits):
    from types import SimpleNamespace

    stage = SimpleNamespace(**world.load(STAGE))
    return stage, stage.Host(world, decides=False, **limits)


def revalidation_story(world):
    stage, host = open_stage(world, cached_bytes=1000)
    site = stage.Site()
    body = [b"one"]

    def tagged(method, asked):
        tag = f'"{body[0].decode()}"'
        if asked.get("if-none-match") == tag:
            return stage.answer(b"", "304 Not Modified", etag=tag, length="")
        return stage.answer(body[0], etag=tag, cache_control="no-cache", content_type="image/png")

    site.routes["/tagged"] = tagged
    site.text("/fresh", b"fresh", cache_control="max-age=60")
    site.text("/hard", b"hard", cache_control="no-store", etag='"h"')
    site.text("/large", b"x" * 2000, cache_control="max-age=60")
    site.text("/missing", b"no", "404 Not Found", cache_control="max-age=60")
    out = {"steps": []}

    async def fetch(path, **more):
        before = len(site.asked)
        found = await host.media.fetch(host.asker(site.url()), site.url(path), **more)
        out["steps"].append([path, found.status, found.body[:9].decode(), found.from_cache, len(site.asked) - before])
        return found

    def poison():
        """Change the module's data as the module itself, inside its guard."""
        done = []
        for name in os.listdir(host.cache):
            path = os.path.join(host.cache, name)
            with open(path, "rb") as file:
                data = file.read()
            with open(path, "wb") as file:
                file.write(data.replace(b"two", b"bad").replace(b"fresh", b"wrong"))
            done.append(name.endswith(".media"))
        return done

    async def story():
        first = await fetch("/tagged")
        await fetch("/tagged")
        body[0] = b"two"
        await fetch("/tagged")
        again = await fetch("/tagged")
        out["headers"] = [first.headers, again.headers]
        await fetch("/fresh")
        await fetch("/fresh")
        await fetch("/fresh", headers={"range": "bytes=0-1"})
        await fetch("/fresh", method="HEAD")
        for path in ("/hard", "/large", "/missing"):
            await fetch(path)
            await fetch(path)
        out["entries"] = len(host.entries())
        out["poisoned"] = host.as_module(poison, paths=[os.path.join(host.data, "modules", "gallery")])
        await fetch("/tagged")
        await fetch("/fresh")
        out["proxied"] = []
        for _ in range(2):
            answer = await host.media.proxy(host.asker(site.url()), site.url("/fresh"), {})
            out["proxied"].append([b"".join([part async for part in answer.body]).decode(), answer.body.from_cache])
        site.text("/both", b"both", cache_control="max-age=60", etag='"b"')
        await fetch("/both")
        for tags in ('"b"', 'W/"b"', '"a", "b"', '"a"'):
            answer = await host.media.proxy(host.asker(site.url()), site.url("/both"), {"If-None-Match": tags})
            found = b"".join([part async for part in answer.body]).decode()
            out["proxied"].append([tags, answer.status, found, answer.headers.get("content-length"), len(site.asked)])

    asyncio.run(story())
    host.close()
    return out


def test_what_is_kept_is_asked_about_and_poison_is_fetched_anew(case):
    """Fresh entries need no HTTP request, others are revalidated, and a changed one is ignored."""
    told = case.run(revalidation_story)
    assert told["steps"] == [
        ["/tagged", 200, "one", False, 1],
        ["/tagged", 200, "one", True, 1],
        ["/tagged", 200, "two", False, 1],
        ["/tagged", 200, "two", True, 1],
        ["/fresh", 200, "fresh", False, 1],
        ["/fresh", 200, "fresh", True, 0],
        ["/fresh", 200, "fresh", False, 1],
        ["/fresh", 200, "", False, 1],
        ["/hard", 200, "hard", False, 1],
        ["/hard", 200, "hard", False, 1],
        ["/large", 200, "xxxxxxxxx", False, 1],
        ["/large", 200, "xxxxxxxxx", False, 1],
        ["/missing", 404, "no", False, 1],
        ["/missing", 404, "no", False, 1],
        ["/tagged", 200, "two", False, 1],
        ["/fresh", 200, "fresh", False, 1],
        ["/both", 200, "both", False, 1],
    ]
    assert told["headers"][1]["content-type"] == "image/png"
    assert told["entries"] == 2
    assert told["poisoned"] == [True, True]
    assert told["proxied"][:2] == [["fresh", True], ["fresh", True]]
    tags = told["proxied"][2:]
    assert [item[:4] for item in tags] == [
        ['"b"', 304, "", None],
        ['W/"b"', 304, "", None],
        ['"a", "b"', 304, "", None],
        ['"a"', 200, "both", "4"],
    ]
    assert len({item[4] for item in tags}) == 1
