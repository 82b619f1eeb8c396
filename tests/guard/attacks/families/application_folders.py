"""Folders of the application on sys.path: only files that the import system loads are readable."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import FILES, Ground, Works, attack, attacks_of


def add_folder(ground: Ground) -> None:
    """An application beside its configuration, on the path before the guard is there."""
    for name, text in {
        ".env": ground.SECRET,
        "settings.toml": ground.SECRET,
        "keys": ground.SECRET,
        "plugins/token.json": ground.SECRET,
        "shop/.secret": ground.SECRET,
        ".git/config": ground.SECRET,
        "shop/__init__.py": "VALUE = 1\n",
        "shop/data.json": "[1]",
        "single.py": "VALUE = 2\n",
    }.items():
        os.makedirs(os.path.dirname(f"{ground.site}/{name}"), exist_ok=True)
        ground.write(f"{ground.site}/{name}", text)


def reading(name: str):
    def act(ground: Ground) -> object:
        with open(f"{ground.site}/{name}") as file:
            return file.read()

    return act


attacks_of(
    {
        "hidden": reading(".env"),
        "configuration": reading("settings.toml"),
        "without_ending": reading("keys"),
        "other_folder": reading("plugins/token.json"),
        "hidden_in_package": reading("shop/.secret"),
        "hidden_folder": reading(".git/config"),
        "upwards": reading("shop/../.env"),
    },
    "a file beside the application's modules is read: {}",
    expect=FILES,
    group="beside_",
    early=add_folder,
)


@attack("modules and the data of packages are read and imported", expect=Works(), early=add_folder)
def importing(ground: Ground) -> bool:
    import importlib.resources

    import shop
    import single

    with open(shop.__file__) as file:
        source = file.read()
    data = importlib.resources.files(shop).joinpath("data.json").read_text()
    return (
        ("VALUE", "[1]", 2) == (source[:5], data, single.VALUE) and "shop" in os.listdir(ground.site) and bool(sys.path)
    )
