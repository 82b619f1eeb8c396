"""A subclass of ModuleType with its own attribute methods, as torch has one."""

from __future__ import annotations


def main(folder):
    import types

    class M(types.ModuleType):
        def __setattr__(self, k, v):
            super().__setattr__(k, v)

        def __delattr__(self, k):
            super().__delattr__(k)

    module = M("lazy")
    module.answer = 42
    module.other = 1
    del module.other
    return [module.answer, sorted(name for name in vars(module) if not name.startswith("_"))]
