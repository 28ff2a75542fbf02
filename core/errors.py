"""The error for everything that a user can put right."""


class InputError(ValueError):
  """A flag, a file or a record is wrong.

  The message names it, gives the value found and says what would be right; the programs print it without a traceback.
  """
