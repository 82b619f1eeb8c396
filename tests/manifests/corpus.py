"""Valid manifests, and manifests with one problem each."""

from __future__ import annotations

NETWORK = {"resource_type": "network", "operation": "receive", "target": "https://api.example.com/v1"}
FILES = {"resource_type": "filesystem", "operation": ["read", "create"], "target": "data"}
PROGRAM = {"resource_type": "system_dependency", "operation": "execute", "target": "ffmpeg"}
MCP = {"name": "search", "transport": "streamable_http", "endpoint_url": "https://mcp.example.com/mcp"}

RIGHT = [
    ("module", {"name": "demo"}),
    ("module", {"name": "demo", "access": []}),
    ("module", {"name": "demo", "access": [NETWORK, FILES, PROGRAM], "allowed_imports": ["ctypes", "cffi"]}),
    ("module", {"$schema": "./module.schema.json", "name": "0.Demo_x-1"}),
    ("module", {"name": "demo", "version": "2.0rc1+local", "description": "Füllt Berichte.", "entry": "src/main.py"}),
    ("module", {"name": "demo", "allowed_imports": ["ünicode"]}),
    *(
        ("module", {"name": "demo", "access": [{**NETWORK, "operation": "connect", "target": target}]})
        for target in (
            *("api.example.com", "api.example.com:443", "*.example.com", "10.0.0.0/8", "[2001:db8::1]:443"),
            *("unix:/run/app.sock", "unix:@name", "wss://feed.example.com/p", "BÜCHER.example", "2001:db8::/32"),
        )
    ),
    *(
        ("module", {"name": "demo", "access": [{**FILES, "target": target}]})
        for target in ("/srv/a b", "./x", "..", "é", "/", "a~b", "file:///x")
    ),
    ("module", {"name": "demo", "access": [{**PROGRAM, "target": "lib ssl 3"}]}),
    ("engine", {"name": "whisper"}),
    ("engine", {"name": "whisper", "runtime": {}, "install": {}}),
    (
        "engine",
        {
            "name": "whisper",
            "runtime": {"access": [FILES], "allowed_imports": ["ctypes"], "allowed_config_urls": ["server.url"]},
            "install": {"access": [NETWORK], "requirements": ["numpy>=2", "./wheel", "a[b] @ https://e.example/x"]},
        },
    ),
    ("extractor", {"name": "pdf", "runtime": {"access": [FILES]}, "install": {"requirements": ["pypdf==5.1"]}}),
    ("module", {"name": "demo", "limits": {}}),
    (
        "module",
        {
            "name": "demo",
            "limits": {
                "address_space_mb": 512,
                "cpu_seconds": 60,
                "open_files": 64,
                "processes": 1e1,
                "wall_seconds": 600,
            },
        },
    ),
    ("engine", {"name": "whisper", "runtime": {"limits": {"cpu_seconds": 1}}, "install": {"limits": {}}}),
    ("extractor", {"name": "pdf", "runtime": {"limits": {"wall_seconds": 31_536_000}}}),
    ("mcp", MCP),
    ("mcp", {**MCP, "transport": "sse", "enabled": False, "timeout_ms": 1}),
    ("mcp", {**MCP, "timeout_ms": 3_600_000, "endpoint_url": "HTTP://localhost:8080/a/b?key=1"}),
    ("mcp", {**MCP, "timeout_ms": 1e3}),
    ("tool", {"name": "demo.read_file"}),
    ("tool", {"name": "demo.read_file", "description": "Reads.", "access": []}),
    ("agent", {"name": "writer", "access": [NETWORK], "allowed_imports": []}),
    ("pipeline", {"name": "report", "access": [FILES]}),
]

# Problems that the schema must find too: kind, manifest, and the pointer of the problem.
WRONG = [
    ("module", [], ""),
    ("module", "demo", ""),
    ("module", None, ""),
    ("tool", {}, ""),
    ("module", {"name": ""}, "/name"),
    ("module", {"name": 7}, "/name"),
    ("module", {"name": "my module"}, "/name"),
    ("module", {"name": "-demo"}, "/name"),
    ("module", {"name": "../x"}, "/name"),
    ("module", {"name": "demo\n"}, "/name"),
    ("module", {"name": "x" * 129}, "/name"),
    ("module", {"name": "demo", "acces": []}, "/acces"),
    ("module", {"name": "demo", "isolation": "process"}, "/isolation"),
    ("module", {"name": "demo", "limits": 512}, "/limits"),
    ("module", {"name": "demo", "limits": {"rss_mb": 512}}, "/limits/rss_mb"),
    ("module", {"name": "demo", "limits": {"cpu_seconds": 0}}, "/limits/cpu_seconds"),
    ("module", {"name": "demo", "limits": {"processes": True}}, "/limits/processes"),
    ("module", {"name": "demo", "limits": {"open_files": 2.5}}, "/limits/open_files"),
    ("module", {"name": "demo", "limits": {"wall_seconds": None}}, "/limits/wall_seconds"),
    ("engine", {"name": "whisper", "limits": {"cpu_seconds": 1}}, "/limits"),
    ("engine", {"name": "whisper", "install": {"limits": {"cpu_seconds": -1}}}, "/install/limits/cpu_seconds"),
    ("extractor", {"name": "pdf", "runtime": {"limits": []}}, "/runtime/limits"),
    ("tool", {"name": "demo.read", "limits": {}}, "/limits"),
    ("module", {"name": "demo", "a/b~c": 1}, "/a~1b~0c"),
    ("module", {"name": "demo", "runtime": {}}, "/runtime"),
    ("module", {"name": "demo", "$schema": 1}, "/$schema"),
    ("module", {"name": "demo", "version": 1.0}, "/version"),
    ("module", {"name": "demo", "version": "1 0"}, "/version"),
    ("module", {"name": "demo", "description": "two\nlines"}, "/description"),
    ("module", {"name": "demo", "entry": "../main.py"}, "/entry"),
    ("module", {"name": "demo", "entry": "/main.py"}, "/entry"),
    ("module", {"name": "demo", "entry": "main.so"}, "/entry"),
    ("module", {"name": "demo", "access": None}, "/access"),
    ("module", {"name": "demo", "access": {}}, "/access"),
    ("module", {"name": "demo", "access": ["https://a.example"]}, "/access/0"),
    ("module", {"name": "demo", "access": [{**NETWORK, "resource_type": "url"}]}, "/access/0/resource_type"),
    ("module", {"name": "demo", "access": [{**NETWORK, "operation": "read"}]}, "/access/0/operation"),
    ("module", {"name": "demo", "access": [{**FILES, "operation": []}]}, "/access/0/operation"),
    ("module", {"name": "demo", "access": [{**FILES, "operation": ["read", "send"]}]}, "/access/0/operation/1"),
    ("module", {"name": "demo", "access": [{**FILES, "target": ""}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**FILES, "target": "~/x"}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**FILES, "target": 1}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**NETWORK, "target": "https://a.example/x y"}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**NETWORK, "target": "https:\\\\a.example"}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**PROGRAM, "target": " ffmpeg"}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**NETWORK, "note": "x"}]}, "/access/0/note"),
    ("module", {"name": "demo", "access": [NETWORK, {"operation": "read", "target": "x"}]}, "/access/1"),
    ("module", {"name": "demo", "allowed_imports": "ctypes"}, "/allowed_imports"),
    ("module", {"name": "demo", "allowed_imports": ["ctypes.util"]}, "/allowed_imports/0"),
    ("module", {"name": "demo", "allowed_imports": ["ctypes", 1]}, "/allowed_imports/1"),
    ("engine", {"name": "whisper", "access": []}, "/access"),
    ("engine", {"name": "whisper", "runtime": []}, "/runtime"),
    ("engine", {"name": "whisper", "runtime": {"$schema": "x"}}, "/runtime/$schema"),
    ("engine", {"name": "whisper", "runtime": {"requirements": []}}, "/runtime/requirements"),
    ("engine", {"name": "whisper", "install": {"allowed_config_urls": []}}, "/install/allowed_config_urls"),
    ("engine", {"name": "whisper", "runtime": {"allowed_config_urls": ["a b"]}}, "/runtime/allowed_config_urls/0"),
    ("engine", {"name": "whisper", "install": {"requirements": ["--index-url=x"]}}, "/install/requirements/0"),
    ("engine", {"name": "whisper", "install": {"requirements": ["../x"]}}, "/install/requirements/0"),
    ("engine", {"name": "whisper", "install": {"requirements": "numpy"}}, "/install/requirements"),
    ("extractor", {"name": "pdf", "runtime": {"allowed_config_urls": []}}, "/runtime/allowed_config_urls"),
    ("mcp", {**MCP, "transport": "stdio"}, "/transport"),
    ("mcp", {**MCP, "endpoint_url": ""}, "/endpoint_url"),
    ("mcp", {**MCP, "endpoint_url": "ftp://mcp.example.com/"}, "/endpoint_url"),
    ("mcp", {**MCP, "endpoint_url": "mcp.example.com"}, "/endpoint_url"),
    ("mcp", {**MCP, "endpoint_url": "https://u:p@mcp.example.com/"}, "/endpoint_url"),
    ("mcp", {**MCP, "endpoint_url": "https://mcp.example.com/#x"}, "/endpoint_url"),
    ("mcp", {**MCP, "endpoint_url": "https://mcp.example.com/" + "x" * 2000}, "/endpoint_url"),
    ("mcp", {**MCP, "enabled": "false"}, "/enabled"),
    ("mcp", {**MCP, "timeout_ms": 0}, "/timeout_ms"),
    ("mcp", {**MCP, "timeout_ms": True}, "/timeout_ms"),
    ("mcp", {**MCP, "timeout_ms": 1.5}, "/timeout_ms"),
    ("mcp", {**MCP, "timeout_ms": 3_600_001}, "/timeout_ms"),
    ("mcp", {**MCP, "access": []}, "/access"),
    ("mcp", {"name": "search", "transport": "sse"}, ""),
    ("tool", {"name": "demo.read", "allowed_imports": ["ctypes"]}, "/allowed_imports"),
    ("tool", {"name": "demo.read", "access": None}, "/access"),
    ("tool", {"name": "demo.read", "entry": "x.py"}, "/entry"),
]

# Problems that only the parser can find.
BEYOND_THE_SCHEMA = [
    ("module", {"name": "demo", "access": [{**NETWORK, "target": "https://127.1/"}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**NETWORK, "target": "*.co.uk"}]}, "/access/0/target"),
    ("module", {"name": "demo", "access": [{**NETWORK, "target": "https://a.example/../x"}]}, "/access/0/target"),
    ("module", {"name": "demo", "allowed_imports": ["class"]}, "/allowed_imports/0"),
    ("module", {"name": "demo", "description": "hid\u202eden"}, "/description"),
    ("mcp", {**MCP, "endpoint_url": "https://mcp.example.com/a/../b"}, "/endpoint_url"),
    ("mcp", {**MCP, "endpoint_url": "https://mcp.example.com/a//b"}, "/endpoint_url"),
]
