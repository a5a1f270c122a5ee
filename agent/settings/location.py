"""Where the ledger is, without a check of the settings: a fleet can be paused although some other setting is wrong."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path

from agent.models.regular_files import read_file
from agent.settings.file import variables_of_file
from domain.errors import BadInput

PREFIX = "TRIMTAB_"
CREDENTIALS = "CREDENTIALS_DIRECTORY"
MODELS_VARIABLE = "TRIMTAB_LEARNED__MODELS_DIR"
DEFAULT_STATE_DIRECTORY = Path("/var/lib/trimtab")
LARGEST_CREDENTIAL_BYTES = 1_000_000
MASK = "***"
"""Shown in place of a secret."""


def sqlite_url(state_directory: Path) -> str:
    """Return the URL of the ledger in a state directory."""
    return f"sqlite:///{(state_directory / 'ledger.db').absolute()}"


def _lower_case(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not empty, by their names in lower case."""
    return {name.lower(): value for name, value in environ.items() if value}


def _value(environ: Mapping[str, str], name: str) -> str | None:
    """Return a setting without secrets; the file of settings is read only where no variable has it."""
    return _lower_case(environ).get(name) or variables_of_file(environ).get(name) or None


def ledger_location(environ: Mapping[str, str]) -> str:
    """Return the ledger's URL: that of the environment or the credentials, else SQLite in the state directory.

    Raises BadInput when credentials or the file of settings cannot be read, and for a relative path: the working
    directory must not decide which ledger a command writes to.
    """
    url = _lower_case({**credentials(environ), **environ}).get("trimtab_ledger__url")
    if url is None:
        state_directory = state_directory_location({**credentials(environ), **environ})
        if not state_directory.is_absolute():
            raise BadInput("TRIMTAB_STATE_DIRECTORY", str(state_directory), "give the absolute path of a directory")
        return sqlite_url(state_directory)
    if re.match(r"sqlite(\+\w+)?:///(?!/)", url):
        raise BadInput("TRIMTAB_LEDGER__URL", url, "give an absolute path, which makes four slashes: sqlite:////FILE")
    return url


def state_directory_location(environ: Mapping[str, str]) -> Path:
    """Return the state directory: that of the environment, else of the file of settings, else the default."""
    return Path(_value(environ, "trimtab_state_directory") or DEFAULT_STATE_DIRECTORY)


def socket_of(state_directory: Path) -> Path:
    """Return the default path of the agent's unix socket."""
    return state_directory.absolute() / "trimtab.sock"


def socket_location(environ: Mapping[str, str]) -> Path:
    """Return the agent's unix socket: that of environment or file, else the one in the state directory."""
    named = _value(environ, "trimtab_http__socket")
    return Path(named) if named else socket_of(state_directory_location(environ))


def models_of(state_directory: Path) -> Path:
    """Return the default directory of models and champion."""
    return state_directory.absolute() / "models"


def models_location(environ: Mapping[str, str]) -> Path:
    """Return the directory of models and champion: that of environment or file, else the one in the state directory."""
    named = _value(environ, MODELS_VARIABLE.lower())
    return Path(named) if named else models_of(state_directory_location(environ))


def promotion_key_of(key: str | None) -> bytes | None:
    """Return the bytes that sign reports of promotions for the key of the settings, None without one."""
    return None if key is None else key.strip().encode("utf-8")


def promotion_key_location(environ: Mapping[str, str]) -> bytes | None:
    """Return the key that verifies promotions, from the environment or the credentials, None without one.

    Raises BadInput when the credentials cannot be read.
    """
    variables = _lower_case({**credentials(environ), **environ})
    return promotion_key_of(variables.get("trimtab_learned__promotion_key"))


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the files in $CREDENTIALS_DIRECTORY, as systemd's LoadCredential creates them, by names of settings.

    Raises BadInput, without any of the contents, when a file cannot be read.
    """
    directory = environ.get(CREDENTIALS)
    if not directory:
        return {}
    found = {}
    path = Path(directory)
    try:
        for entry in sorted(path.iterdir()):
            path = entry
            if path.name.upper().startswith(PREFIX):
                # Some containers' secrets are links into a directory that is replaced whole.
                content = read_file(path, LARGEST_CREDENTIAL_BYTES, follow_links=True)
                found[path.name] = content.decode("utf-8").strip()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise BadInput(
                CREDENTIALS, str(path), f"keep a credential below {LARGEST_CREDENTIAL_BYTES} bytes"
            ) from None
        raise BadInput(CREDENTIALS, str(path), f"make it readable for this user ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadInput(CREDENTIALS, str(path), "write the credential as UTF-8 text") from None
    return found


def without_password(url: str) -> str:
    """Return the URL with its passwords, before the host and among its parameters, replaced by ***."""
    url = re.sub(r"(://[^:/@\s]*):[^\s]*@", r"\1:***@", url)
    return re.sub(r"([?&][a-z]*password=)[^&\s]*", r"\1***", url, flags=re.IGNORECASE)


def masked(secret: str) -> str:
    """Return a secret as it may be shown: a ledger's URL without its password, anything else masked.

    URLs of another scheme are masked too: the path of a webhook is its key.
    """
    if secret.startswith("sqlite:///"):
        return secret
    shown = without_password(secret)
    # Where the host is missing, the password may be in the place of the port.
    is_plain_url = re.fullmatch(
        r"postgresql(?:\+[a-z0-9]+)?://(?:[^:/?@\s]*(?::\*\*\*)?@)?[^:/?@\s]*(?::\d+)?(?:[/?][^@\s]*)?", shown
    )
    return shown if is_plain_url else MASK
