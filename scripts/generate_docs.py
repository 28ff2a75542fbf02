"""Writes the parts of documents that are made from data: `python scripts/generate_docs.py`; a test compares them.

A part stands between the lines `<!-- begin NAME: ... -->` and `<!-- end NAME -->`.
"""

import json
import pathlib
import re

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def tried_versions():
  """Table of docs/tried_versions.json, which noxfile.py writes."""
  rows = json.loads((_ROOT / 'docs' / 'tried_versions.json').read_text(encoding='utf-8'))
  lines = ['| Python | TensorFlow | date | tests | passed | failed | skipped |', '|---|---|---|---|---|---|---|']
  for row in rows:
    lines.append('| ' + ' | '.join(str(row[name]) for name in
                                   ('python', 'tensorflow', 'date', 'tests', 'passed', 'failed', 'skipped')) + ' |')
  return '\n'.join(lines)


# (document, name of the part) -> function that makes its text.
PARTS = {('README.md', 'tried versions'): tried_versions}


def generated(document, name):
  """(text of a document as it is, as it should be)."""
  text = (_ROOT / document).read_text(encoding='utf-8')
  pattern = re.compile(rf'(<!-- begin {name}: .* -->\n).*?(<!-- end {name} -->)', re.DOTALL)
  if not pattern.search(text):
    raise ValueError(f'{document} has no part between <!-- begin {name}: ... --> and <!-- end {name} -->.')
  return text, pattern.sub(lambda match: f'{match[1]}{PARTS[document, name]()}\n{match[2]}', text)


def main():
  for document, name in PARTS:
    old, new = generated(document, name)
    if new != old:
      (_ROOT / document).write_text(new, encoding='utf-8')
      print(f'{document}: wrote {name}.')


if __name__ == '__main__':
  main()
