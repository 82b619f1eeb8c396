"""File names that look alike but differ, and names with undecodable bytes."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, Ground, attack


def twins(allowed: str | bytes, other: str | bytes):
    """A declared root and a folder with the secret whose name looks like it."""

    def place(ground: Ground, name: str | bytes) -> str:
        return f"{ground.base}/{os.fsdecode(name)}"

    def prepare(ground: Ground) -> None:
        os.makedirs(place(ground, allowed), exist_ok=True)
        os.makedirs(place(ground, other), exist_ok=True)
        ground.write(f"{place(ground, other)}/secret.txt", ground.SECRET)

    def policy(ground: Ground) -> dict[str, object]:
        return {"allowed_paths": [place(ground, allowed)], "access": []}

    def act(ground: Ground) -> object:
        return open(f"{place(ground, other)}/secret.txt").read()

    def act_with_bytes(ground: Ground) -> object:
        return open(os.fsencode(f"{place(ground, other)}/secret.txt")).read()

    return prepare, policy, act, act_with_bytes


TWINS = {
    "composed": ("caf\u00e9", "cafe\u0301"),
    "decomposed": ("cafe\u0301", "caf\u00e9"),
    "upper_case": ("Case", "case"),
    "lower_case": ("case", "CASE"),
    "sharp_s": ("stra\u00dfe", "strasse"),
    "ligature": ("o\ufb03ce", "office"),
    "cyrillic": ("\u0430dmin", "admin"),
    "full_width": ("\uff41dmin", "admin"),
    "zero_width": ("ad\u200bmin", "admin"),
    "right_to_left": ("admin\u202e", "admin"),
    "trailing_space": ("admin", "admin "),
    "trailing_dot": ("admin", "admin."),
    "trailing_newline": ("admin", "admin\n"),
    "backslash": ("admin", "admin\\"),
    "star": ("adm*", "admin"),
    "question_mark": ("adm?n", "admin"),
    "brackets": ("adm[i]n", "admin"),
    "percent": ("adm%69n", "admin"),
    "dollar": ("$HOME", "outside"),
    "tilde": ("~", "outside"),
    "odd_byte": (b"odd\xff", b"odd\xfe"),
    "odd_byte_decoded": (b"odd\xe9", "odd\u00e9".encode()),
    "cut_character": (b"odd\xc3", b"odd\xc3\xa9"),
}
for case, (allowed, other) in TWINS.items():
    prepare, policy, act, act_with_bytes = twins(allowed, other)
    text = f"the root {allowed!a} is declared, {other!a} is read"
    attack(text, expect=FILES, name=case, prepare=prepare, policy=policy)(act)
    attack(text + " by bytes", expect=FILES, name=f"{case}_bytes", prepare=prepare, policy=policy)(act_with_bytes)


@attack(
    "a name of 255 bytes next to the root is read",
    expect=FILES,
    prepare=lambda ground: ground.write(f"{ground.outside_dir}/{'n' * 255}", ground.SECRET),
)
def long_name(ground: Ground) -> object:
    return open(f"{ground.outside_dir}/{'n' * 255}").read()


@attack("a path of nearly 4096 bytes leads out", expect=FILES)
def long_path(ground: Ground) -> object:
    tail = "/../outside/secret.txt"
    filler = "/." * ((4090 - len(ground.inside) - len(tail)) // 2)
    return open(f"{ground.inside}{filler}{tail}").read()


@attack("a long chain of folders and dots leads out", expect=FILES)
def deep_chain(ground: Ground) -> object:
    deep = "/d" * 300
    os.makedirs(ground.inside + deep)
    return open(f"{ground.inside}{deep}{'/..' * 301}/outside/secret.txt").read()
