"""Input that is known to confuse URL parsers, by the part of the URL."""

from __future__ import annotations

SCHEMES = ["http", "https", "ws", "wss", "ftp", "HTTP", "hTTps", "redis", "git", "postgres", "custom+x", "file"]

HOMOGRAPHS = [
    *("аpple.com", "exаmple.com", "paypaⅼ.com", "ｅxample.com", "faß.de", "ας.gr", "ΑΣ.gr", "bücher.example"),
    *(
        "BÜCHER.de",
        "日本語.jp",
        "日本語。jp",
        "a．com",
        "a｡com",
        "⒈.com",
        "①.com",
        "℀.com",
        "\u212a.com",
        "ſ.com",
        "ı.com",
    ),
    *("İ.com", "e\u0301.com", "é.com", "١٢٧.0.0.1", "１２７.０.０.１", "127。0。0。1", "ⓛocalhost"),
    *("localhoﬆ", "xn--ls8h.la"),
    *("xn--fa-hia.de", "xn--bcher-kva.example", "XN--BCHER-KVA.example", "xn--zz.com", "xn--a.de", "xn--.com"),
    *("☃.net", "a\u200db.com", "a\u200cb.com", "a\xadb.com", "a\u2060b.com", "\u0301a.com", "ab--c.com"),
    *("नी\u200dत.com", "ჽ.com"),
]
"""Hosts in other scripts: valid ones, look-alikes, and characters that only one standard maps."""

ODD_HOSTS = [
    *("0x7f.1", "2130706433", "127.1", "0177.0.0.1", "0x7f000001", "017700000001", "127.0.0.01", "127.0.0.1.", "0"),
    *("0x", "256.1.1.1", "1.2.3", "1.2.3.4.5", "1.2.3.0x4", "0.0.0.0", "00.0.0.0", "1e3.5", "a.1", "a.0x1"),
    *("4294967296", "127.0.0.1", "a.com.", "a.com..", ".a.com", "a..com", "-a.com", "a-.com", "a_b.com", "_a.com"),
    *("a.-b", "localhost", "localhost.", "a.com%00", "a.com%00.b.com", "a%2ecom", "a%2fb.com", "%61.com"),
    *("a.com%40b.com", "a.com%", "%E3%80%82.com", "a.com\0.b.com", "a.com\r\n.b.com", "a.com\t.b.com"),
    *("a.com .b.com", " a.com", "a.com\\b.com", "a.com\\@b.com", "u@a.com", "u:p@a.com", "@a.com", "a.com@b.com"),
    *("a.com:80@b.com", "a.com:@b.com", "a.com;b.com", "a.com,b.com", "a.com&b.com", "a.com|b.com", "a.com<b"),
    *("a.com^b", "a.com`b", "{a}.com", "a+b.com", "a~b.com", "a!b.com", "a'b", 'a"b', "", "*", "*.a.com", "a*.com"),
    *("[a.com]", "[127.0.0.1]", "[]", "[::1", "::1]", "::1", "[::1]x", "x[::1]", "[[::1]]", "[::1%25lo]", "[::1%lo]"),
    *("[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%]", "[v1.x]", "[::ffff:127.1]", "[::ffff:0x7f.1]"),
    "a" * 63 + ".com",
    "a" * 64 + ".com",
    ".".join(["a" * 63] * 3 + ["b" * 61]),
    ".".join(["a" * 63] * 3 + ["b" * 62]),
]
"""Numbers that some read as addresses, and characters that end, split or hide a host."""

ODD_PORTS = [
    *("", ":80", ":443", ":8080", ":1", ":65535", ":", ":0", ":00", ":080", ":0080", ":65536", ":99999"),
    *(":80000000000", ":-1", ":+80", ":8 0", ": 80", ":80 ", ":８０", ":٨٠", ":0x50", ":8e1", ":8_0", ":80:80", ":80."),
    *(":80a", ":http", ":%38%30", ":80@b.com", "\t:80", ":\t80", ":80\n", ":²"),
]

ODD_SEGMENTS = [
    *("v1", "a", "A", "", ".", "..", "...", "..a", ".a", "a.", "a..b", "..;", "..;x=1", ".;", ";", ";x", "a;x=1"),
    *(
        "~a",
        "-",
        "_",
        "%2e",
        "%2E%2e",
        ".%2e",
        "%2e.",
        "%252e%252e",
        "%25252e",
        "%25%32%65",
        "%2f",
        "%2F..",
        "%252f",
        "%5c",
    ),
    *("%5C..", "%255c", "..%3B", "..%3bx", "..%253b", "%00", "a%00b", "%0d%0aHost:x", "%0a", "%09", "%1f", "%7f"),
    *("%20", "%2520", "%25", "%", "%%", "%z", "%4", "%zz", "%u002e", "%41", "%61%62", "%7e", "%7E", "%2d", "%5f"),
    *("%21%24%26%27%28%29%2a%2c%3a%3b%3d%40", "%2b", "+", "%3f", "%3F%23", "%23", "%3c", "%7c", "%c3%a9", "%C3%A9"),
    *("é", "e\u0301", "%ff", "%c0%ae%c0%ae", "%c0%af", "%e2%80%ae", "日本", "😀", "ﬁ", "．．", "／", "‥", "．", "a b"),
    *("a\tb", "a\nb", "a\rb", "a\0b", "\x7f", "\x85", "\xa0", "\u2028", "\u200b", "\u202e", "\ufeff", "\ud800", "\\"),
    *("..\\", "a\\b", "@", "a@b", "@b.com", ":", "a:80", "!$&'()*+,;=:@", "{id}", "[x]", "a|b", "a^b", "`", '"', "'"),
    *("<", ">", "*", "C|", "C:", "c:"),
]

ODD_TAILS = [
    *("", "?", "?q", "?q=1&r=2", "?/../x", "?@b.com", "?\\@b.com", "??", "?#", "?a#b", "?%00", "?a b", "?é", "?\t"),
    *("?http://b.com/", "#", "#f", "#/../x", "#@b.com", "##", "#a#b", "#?x", "#é", "# ", "#\n", "#%00", ";x"),
    *(";@b.com", "?#?#", "?a#b#c"),
]

TOKENS = [
    *map(chr, range(0x80)),
    *("\r\n", "##", "%00", "%09", "%0d%0a", "%20", "%23", "%25", "%252e", "%252f", "%253b", "%255c", "%2E", "%2b"),
    *("%2e", "%2f", "%3A", "%3a", "%3b", "%3f", "%4", "%40", "%5c", "%7f", "%80", "%c3%a9", "%u002e", "%zz", "*."),
    *("--", "..", "...", "/.", "/..", "/../", "/..;/", "/./", "/.;/", "//", "/\\", "08", "0x", "://", ":80@", "::"),
    *("??", "@@", "\\/", "b.com", "http://", "u:p@", "u@", "xn--", "\x80", "\x85", "\xa0", "\xad", "ß", "é", "İ"),
    *(
        "ı",
        "ſ",
        "\u0301",
        "Σ",
        "ς",
        "а",
        "\u200b",
        "\u200d",
        "\u2028",
        "\u2029",
        "\u202e",
        "\u2060",
        "\u212a",
        "①",
        "⒈",
        "。",
    ),
    *("\ud800", "\udc80", "\ufeff", "＃", "％", "．", "／", "０", "：", "？", "＠", "［", "＼", "｡"),
]
"""Tokens to insert into valid URLs at any place."""
