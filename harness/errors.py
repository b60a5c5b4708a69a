"""The few errors a user can meet. Each message says where, what value, which rule, what is valid, and what to do."""


class ProjectError(Exception):
    """Base of every error that is the user's to act on: printed without a traceback, exit status 2."""


class ConfigError(ProjectError):
    """experiments.yaml, or a command-line name that must be in it, is wrong."""


class DataError(ProjectError):
    """A data set is missing, incomplete or corrupt."""


class RecordError(ProjectError):
    """A record, plan or heartbeat cannot be read or written."""


class SubmissionError(ProjectError):
    """The scheduler did not take a job."""


class Refused(ProjectError):
    """This machine cannot do what the variant asks for (tf32 on a CPU, say); it is not run as something else."""


class CheckFailed(ProjectError):
    """A result is numerically wrong, so its speed is not measured."""
