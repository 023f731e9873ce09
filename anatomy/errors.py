"""The one exception that stands for a user's mistake."""


class UserError(Exception):
    """The input was wrong. Each line of the message says where, what, what is allowed, what to type.

    Every command prints it without a traceback and exits with status 2.
    """
