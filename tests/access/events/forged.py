"""JSON objects that are not valid events, or not for this channel."""

from __future__ import annotations

FORGED = [
    b"{}",
    b'{"v":2,"node":"x","generation":900,"channel":"%s"}',
    b'{"v":true,"node":"x","generation":900,"channel":"%s"}',
    b'{"v":"1","node":"x","generation":900,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":-1,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":9223372036854775808,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":1e3,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":NaN,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":true,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":"900","channel":"%s"}',
    b'{"v":1,"node":["x"],"generation":900,"channel":"%s"}',
    b'{"v":1,"node":"x","generation":900,"channel":"other"}',
    b'{"v":1,"generation":900,"channel":"%s"}',
    b'{"v":1,"hub":true}',
    b'{"v":1,"node":"x","channel":"%s","generation":' + b"9" * 4000 + b"}",
]


def forged_events(channel):
    return [text.replace(b"%s", channel.encode()) for text in FORGED]
