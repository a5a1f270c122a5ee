"""Where the ledger is, from the environment alone: a fleet can be paused although some other setting is wrong."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path

from agent.models.regular_files import read_file
from domain.errors import BadInput

PREFIX = "TRIMTAB_"
CREDENTIALS = "CREDENTIALS_DIRECTORY"
DEFAULT_STATE_DIRECTORY = Path("/var/lib/trimtab")
LARGEST_CREDENTIAL_BYTES = 1_000_000
MASK = "***"
"""Stands where a secret is."""


def sqlite_url(state_directory: Path) -> str:
    """Return the URL of the ledger in a state directory."""
    return f"sqlite:///{(state_directory / 'ledger.db').absolute()}"


def ledger_location(environ: Mapping[str, str]) -> str:
    """Return the ledger's URL: that of the environment or the credentials, else SQLite in the state directory.

    Raises BadInput when the credentials cannot be read, and for a relative path: the folder in which a verb is typed
    must not decide which ledger it switches.
    """
    found = {name.lower(): value for name, value in {**credentials(environ), **environ}.items() if value}
    url = found.get("trimtab_ledger__url")
    if url is None:
        state_directory = Path(found.get("trimtab_state_directory", DEFAULT_STATE_DIRECTORY))
        if not state_directory.is_absolute():
            raise BadInput("TRIMTAB_STATE_DIRECTORY", str(state_directory), "give the absolute path of a directory")
        return sqlite_url(state_directory)
    if re.match(r"sqlite(\+\w+)?:///(?!/)", url):
        raise BadInput("TRIMTAB_LEDGER__URL", url, "give an absolute path, which makes four slashes: sqlite:////FILE")
    return url


def state_directory_location(environ: Mapping[str, str]) -> Path:
    """Return the state directory: that of the environment, else the usual one."""
    found = {name.lower(): value for name, value in environ.items() if value}
    return Path(found.get("trimtab_state_directory", DEFAULT_STATE_DIRECTORY))


def socket_of(state_directory: Path) -> Path:
    """Return where the agent's unix socket is when no setting says so."""
    return state_directory.absolute() / "trimtab.sock"


def socket_location(environ: Mapping[str, str]) -> Path:
    """Return the agent's unix socket: that of the environment, else the one in the state directory."""
    found = {name.lower(): value for name, value in environ.items() if value}
    named = found.get("trimtab_http__socket")
    return Path(named) if named else socket_of(Path(found.get("trimtab_state_directory", DEFAULT_STATE_DIRECTORY)))


def models_of(state_directory: Path) -> Path:
    """Return the directory of models and champion when no setting says so."""
    return state_directory.absolute() / "models"


def models_location(environ: Mapping[str, str]) -> Path:
    """Return the directory of models and champion: that of the environment, else the one in the state directory."""
    found = {name.lower(): value for name, value in environ.items() if value}
    named = found.get("trimtab_learned__models_dir")
    return Path(named) if named else models_of(Path(found.get("trimtab_state_directory", DEFAULT_STATE_DIRECTORY)))


def promotion_key_of(key: str | None) -> bytes | None:
    """Return the bytes that sign reports of promotions for a key as the settings have it, None without one."""
    return None if key is None else key.strip().encode("utf-8")


def promotion_key_location(environ: Mapping[str, str]) -> bytes | None:
    """Return the key by which the agent checks promotions: that of the environment or the credentials, None without.

    Raises BadInput when the credentials cannot be read.
    """
    found = {name.lower(): value for name, value in {**credentials(environ), **environ}.items() if value}
    return promotion_key_of(found.get("trimtab_learned__promotion_key"))


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what lies in $CREDENTIALS_DIRECTORY, as systemd's LoadCredential leaves it, under names of settings.

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
    """Return what may be shown of a secret: of a ledger's URL all but the password, of anything else nothing.

    Only of URLs whose scheme is a ledger's: the path of a webhook is its key.
    """
    if secret.startswith("sqlite:///"):
        return secret
    shown = without_password(secret)
    # Who forgets the host may have its password where the port would be.
    is_plain_url = re.fullmatch(
        r"postgresql(?:\+[a-z0-9]+)?://(?:[^:/?@\s]*(?::\*\*\*)?@)?[^:/?@\s]*(?::\d+)?(?:[/?][^@\s]*)?", shown
    )
    return shown if is_plain_url else MASK
