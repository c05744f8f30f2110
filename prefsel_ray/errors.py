"""The one exception that a user can cause and mend."""


class PrefselError(Exception):
    """A wrong or missing input. The message is one line: what is wrong, where (file, row, column or flag), what to do.

    The command line prints it without a traceback and exits with code 2.
    """
