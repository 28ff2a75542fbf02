"""The error for everything that a user can put right, what an error of TensorFlow says, and how messages list names."""

import re

# Names listed in one message.
_MAX_LISTED = 8


class InputError(ValueError):
  """A flag, a file or a record is wrong.

  The message names it, gives the value found and says what would be right; the programs print it without a traceback.
  """


def explain(error):
  """What a TensorFlow error (tf.errors.OpError) says, without where in the graph."""
  text = (error.message or str(error) or type(error).__name__).split('\n\t [[')[0]
  assertion = re.search(r'assertion failed: \[(.*)\]', text, re.DOTALL)
  if assertion:
    return assertion.group(1).replace('\\"', '"').replace('] [', ' ')
  return text.strip().splitlines()[-1]


def listed(names):
  """The first names of a list in quotation marks, and how many more there are."""
  more = f' and {len(names) - _MAX_LISTED} more' if len(names) > _MAX_LISTED else ''
  return ', '.join(map(repr, names[:_MAX_LISTED])) + more
