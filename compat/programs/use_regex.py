"""regex: Unicode properties, fuzzy matching, recursion and named lists."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import regex

    path = os.path.join(folder, "text.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("The colour of caf\u00e9 42 is (a(b)c) and \u4e2d\u6587. The color too.")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    fuzzy = regex.search(r"(?:colur){e<=1}", text)
    assert fuzzy is not None
    nested = regex.search(r"\((?:[^()]|(?R))*\)", text).group()
    named = regex.compile(r"\b\L<words>\b", words=["of", "is", "too"])
    captures = regex.match(r"(?:(\w)+,?)+", "ab,c").captures(1)
    try:
        regex.compile(r"(unclosed")
        error = ""
    except regex.error as problem:
        error = type(problem).__name__
    return {
        "fuzzy": [fuzzy.group(), list(fuzzy.fuzzy_counts)],
        "nested": nested,
        "han": regex.findall(r"\p{Script=Han}+", text),
        "named": named.findall(text),
        "captures": captures,
        "overlapped": regex.findall(r"..", "abcd", overlapped=True),
        "sub": regex.sub(r"(?P<word>colou?r)", lambda m: m["word"].upper(), text, count=1)[:12],
        "split": regex.split(r"\s+", "a b  c"),
        "lookbehind": regex.findall(r"(?<=caf\w+\s)\d+", text),
        "partial": regex.fullmatch(r"\d{4}", "12", partial=True).partial,
        "graphemes": len(regex.findall(r"\X", "e\u0301a")),
        "error": error,
    }
