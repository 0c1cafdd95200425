"""Every error a user can cause, as one small tree.

Messages state the value, the rule and the remedy, and name the file, dialogue id or configuration key.
The command line turns each into one line on stderr and an exit code; anything else is a bug and keeps its traceback.
"""


class HushbotError(Exception):
    """Base of all errors that hushbot raises on purpose (exit code 1)."""

    exit_code = 1


class ConfigError(HushbotError):
    """A configuration is wrong; several problems are collected into one error (exit code 2).

    Args:
        problems: One message per problem, each naming its configuration key.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class UnsupportedError(ConfigError):
    """A target cannot do what was asked of it, such as a decoder; what needs that is not measured."""


class DataError(HushbotError):
    """A corpus, split or text is malformed; names the file and the dialogue id."""


class StateParseError(DataError):
    """A text holds no dialogue state: a parse failure, which is not the same as an empty state."""


class AuditError(HushbotError):
    """A measurement could not be made; the caller must report it as inconclusive, never as zero."""


class MachineError(HushbotError):
    """The machine refused: no room, no permission, no memory; what was finished is kept."""


class OutageError(HushbotError):
    """A server went away. No finding about a bot: the audit ends, keeps what it has, and the same command goes on."""


class PrivacyError(HushbotError):
    """A privacy guarantee would be void, so the run is refused."""
