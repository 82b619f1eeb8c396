"""Typical programs for popular packages, run plain, beside an idle guard, under a guard, and in a confined worker.

``python -m compat`` runs them and writes ``results/programs.json`` and ``docs/compatibility.md``. ``expected.toml`` has
the reviewed differences. Other files in ``results`` are sections of the page, in the order of their names::

    {
      "title": "Tests of CPython",
      "about": "What was run, in Markdown.",
      "python": "3.11.7",
      "modes": ["guarded", "worker"],
      "suites": [
        {
          "name": "test_os",
          "version": "3.11.7",
          "counts": {
            "plain": {"ran": 275, "failed": 0, "skipped": 12},
            "guarded": {"ran": 275, "failed": 1, "skipped": 12}
          },
          "differences": [
            {"mode": "guarded", "tests": ["test_os.A.test_b"], "reason": "It starts a program.", "declare": ""}
          ]
        }
      ]
    }

``declare`` says what makes the tests pass; it is empty where the refusal is right.
"""
