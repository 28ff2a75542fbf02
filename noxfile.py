"""Tries every supported pair of Python and TensorFlow, and the lint: `nox`, or `nox -s lint`, `nox -s tests-3.10`.

    pip install nox
    nox                                  all sessions
    nox -s tests-3.13 -- tests/core      one pair, some of the tests

The Pythons are looked for on PATH and among those of pyenv; a session whose Python is missing fails and says so. What a session
of the tests finds goes to docs/tried_versions.json, from which README.md has its table (scripts/generate_docs.py).
"""

import datetime
import json
import os
import pathlib
import xml.etree.ElementTree

import nox

_ROOT = pathlib.Path(__file__).parent
_RECORD = _ROOT / 'docs' / 'tried_versions.json'
# The oldest pair, one in the middle, the newest.
_TENSORFLOW = {'3.10': '2.16', '3.12': '2.18', '3.13': '2.21'}

nox.options.error_on_missing_interpreters = True


def _put_pyenv_on_path():
  """pyenv's own commands work for the version that is chosen in it alone."""
  versions = pathlib.Path(os.environ.get('PYENV_ROOT', pathlib.Path.home() / '.pyenv')) / 'versions'
  folders = [str(path) for python in _TENSORFLOW for path in sorted(versions.glob(f'{python}.*/bin'), reverse=True)]
  os.environ['PATH'] = os.pathsep.join([*folders, os.environ['PATH']])


_put_pyenv_on_path()


def _counts(path):
  """Passed, failed and skipped tests of a file of pytest --junitxml."""
  suite = next(xml.etree.ElementTree.parse(path).getroot().iter('testsuite'))
  total, failures, errors, skipped = (int(suite.get(name)) for name in ('tests', 'failures', 'errors', 'skipped'))
  return {'passed': total - failures - errors - skipped, 'failed': failures + errors, 'skipped': skipped}


def _record(row):
  """Puts a row of the table in the place of that of the same Python."""
  rows = {old['python'].rpartition('.')[0]: old for old in json.loads(_RECORD.read_text(encoding='utf-8'))}
  rows[row['python'].rpartition('.')[0]] = row
  ordered = sorted(rows.values(), key=lambda found: [int(part) for part in found['python'].split('.')])
  _RECORD.write_text(json.dumps(ordered, indent=1) + '\n', encoding='utf-8')


@nox.session(python=list(_TENSORFLOW))
def tests(session):
  """The tests under one pair of Python and TensorFlow; arguments go to pytest."""
  tensorflow = _TENSORFLOW[session.python]
  session.install('--editable', '.[test]', f'tensorflow=={tensorflow}.*', f'tf-keras=={tensorflow}.*')
  results = pathlib.Path(session.create_tmp()) / 'results.xml'
  # A PYTHONPATH could hold another deeplab.
  session.run('python', '-m', 'pytest', '--numprocesses=2', '--dist=loadfile', '-m', 'not full', f'--junitxml={results}',
              *session.posargs, env={'PYTHONPATH': ''}, success_codes=[0, 1])
  versions = session.run('python', '-c', 'import importlib.metadata, platform; '
                         'print(platform.python_version(), importlib.metadata.version("tensorflow"))', silent=True)
  if versions is None:  # Nothing was run: --install-only.
    return
  python, tensorflow = versions.split()
  counts = _counts(results)
  _record({'python': python, 'tensorflow': tensorflow, 'date': f'{datetime.date.today()}',
           'tests': ' '.join(session.posargs) or 'all but the longest', **counts})
  session.run('python', 'scripts/generate_docs.py')
  if counts['failed']:
    session.error(f'{counts["failed"]} tests failed.')


@nox.session(venv_backend='none')
def lint(session):
  """What scripts/lint.sh looks at: ruff and mypy."""
  session.run('bash', 'scripts/lint.sh', external=True)
