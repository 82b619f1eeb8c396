"""pytest: run a small test file with fixtures, parameters and captured output."""

from __future__ import annotations


def main(folder: str) -> object:
    import contextlib
    import io
    import os
    import re

    import pytest

    path = os.path.join(folder, "test_small.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            "import logging\n"
            "import pytest\n\n\n"
            "@pytest.fixture\n"
            "def numbers(tmp_path):\n"
            "    (tmp_path / 'n.txt').write_text('1 2 3')\n"
            "    yield [int(n) for n in (tmp_path / 'n.txt').read_text().split()]\n\n\n"
            "def test_sum(numbers):\n"
            "    assert sum(numbers) == 6\n\n\n"
            "@pytest.mark.parametrize('a,b', [(1, 1), (2, 4), (3, 9)])\n"
            "def test_square(a, b):\n"
            "    assert a * a == b\n\n\n"
            "def test_output(capsys, caplog, monkeypatch):\n"
            "    monkeypatch.setattr('os.getcwd', lambda: 'here')\n"
            "    print('hello')\n"
            "    logging.getLogger().warning('careful')\n"
            "    assert capsys.readouterr().out == 'hello\\n'\n"
            "    assert 'careful' in caplog.text\n\n\n"
            "def test_fails():\n"
            "    left = {'a': 1}\n"
            "    assert left == {'a': 2}\n\n\n"
            "@pytest.mark.skip(reason='later')\n"
            "def test_skipped():\n"
            "    pass\n\n\n"
            "def test_raises():\n"
            "    with pytest.raises(ZeroDivisionError, match='division'):\n"
            "        1 / 0\n"
        )

    class Collect:
        def __init__(self) -> None:
            self.outcomes = {}

        def pytest_runtest_logreport(self, report: object) -> None:
            if report.when == "call" or report.skipped:
                self.outcomes[report.nodeid.split("::")[1]] = report.outcome

    def run(*extra: str) -> tuple:
        collect, output = Collect(), io.StringIO()
        options = ["-p", "no:cacheprovider", "-q", "--rootdir", folder, "--basetemp", os.path.join(folder, "tmp")]
        with contextlib.redirect_stdout(output):
            code = pytest.main([*options, *extra, path], plugins=[collect])
        return int(code), collect.outcomes, output.getvalue()

    code, outcomes, _ = run()
    selected, chosen, text = run("--capture=sys", "-k", "square or sum or fails")
    assert code == 1 and selected == 1 and outcomes["test_sum"] == "passed"
    return {
        "code": code,
        "outcomes": outcomes,
        "chosen": sorted(chosen),
        "summary": re.search(r"\d+ failed, \d+ passed, \d+ deselected", text).group(),
        "detail": "assert left == {'a': 2}" in text,
    }
