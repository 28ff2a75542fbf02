"""Parts of documents that are made from data are as the script makes them."""

import json
import pathlib

import pytest
import script_module

generate_docs = script_module.load('generate_docs.py')
_ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize('document, name', generate_docs.PARTS)
def test_generated_part(document, name):
  found, generated = generate_docs.generated(document, name)
  assert found == generated, f'run: python scripts/generate_docs.py (part {name} of {document})'


def test_rows_of_tried_versions():
  rows = json.loads((_ROOT / 'docs' / 'tried_versions.json').read_text(encoding='utf-8'))
  lines = generate_docs.tried_versions().splitlines()
  assert len(lines) == 2 + len(rows)
  assert all(f'| {row["python"]} | {row["tensorflow"]} | {row["date"]} | ' in line for row, line in zip(rows, lines[2:]))


def test_part_that_is_not_there(tmp_path, monkeypatch):
  monkeypatch.setattr(generate_docs, '_ROOT', tmp_path)
  (tmp_path / 'README.md').write_text('nothing')
  with pytest.raises(ValueError, match='README.md has no part between'):
    generate_docs.generated('README.md', 'tried versions')
