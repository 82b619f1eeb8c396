"""Torch and the packages for CUDA go to a file of their own; nothing else does."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "separate_torch.py"
LINES = {
    "numpy": "numpy==2.4.6 \\\n    --hash=sha256:aa\n    # via torch\n",
    "nvidia": "nvidia-nccl-cu13==2.29.7 ; sys_platform == 'linux' \\\n    --hash=sha256:bb\n    # via torch\n",
    "torch": "torch==2.13.0 \\\n    --hash=sha256:cc \\\n    --hash=sha256:dd\n    # via -r requirements.in\n",
    "torchless": "torch-like==1 \\\n    --hash=sha256:ee\n",
}
HEAD = "# made by\n#    make lock\n"


def test_only_torch_and_the_packages_for_cuda_are_moved():
    kept, moved = runpy.run_path(str(SCRIPT))["separate"](HEAD + "".join(LINES.values()))
    assert kept == HEAD + LINES["numpy"] + LINES["torchless"]
    assert moved == HEAD + LINES["nvidia"] + LINES["torch"]
