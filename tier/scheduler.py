"""A Dask scheduler that is there already: where it is, how a connection to it is secured, and why there is none.

Environment variables of whoever starts the engine say it:

    TIER_SCHEDULER                            tls://host:port, or tcp://host:port without encryption
    TIER_TLS_CA, TIER_TLS_CERT, TIER_TLS_KEY  PEM files: whom to trust, and who we are; without them, those of Dask's
                                              own configuration (`distributed.comm.tls`)
    TIER_WORKER_RESOURCES                     what a job takes of its worker, e.g. GPU=1

Whoever holds a certificate of that authority may run code on every worker, so it should sign for nothing else.
"""

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SCHEDULER = "TIER_SCHEDULER"
RESOURCES = "TIER_WORKER_RESOURCES"
TLS = {"ca_file": "TIER_TLS_CA", "client_cert": "TIER_TLS_CERT", "client_key": "TIER_TLS_KEY"}
CONNECT = 15.0  # seconds in which a scheduler must answer


class SettingsError(ValueError):
    """The settings cannot work, however often they are tried; the message says what to change."""


class UnreachableError(OSError):
    """The scheduler does not answer at the moment."""


@dataclass(frozen=True)
class Scheduler:
    """Where a scheduler is and what a connection needs; `resources` is what each job takes of its worker."""

    address: str
    host: str
    port: int
    tls: Mapping[str, str] = field(default_factory=dict)  # Dask's names of the PEM files
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def encrypted(self) -> bool:
        return self.address.startswith("tls://")

    def connect(self, timeout: float = CONNECT) -> Any:
        """A Dask client of the scheduler.

        Raises SettingsError when they do not accept each other, and UnreachableError when nobody answers in time.
        """
        import distributed

        self._try(timeout)
        try:
            return distributed.Client(
                self.address,
                timeout=timeout,
                security=distributed.Security(**self._tls_options()),
                set_as_default=False,
                name="tier-engine",
            )
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"the scheduler {self.address} does not answer: {_words(error)}") from error
        except ImportError as error:  # Dask's refusal of other versions
            raise SettingsError(f"the scheduler {self.address} runs other versions: {_words(error)}") from error

    def _tls_options(self) -> dict[str, Any]:
        if not self.encrypted:
            return {}
        return {f"tls_{name}": path for name, path in self.tls.items()} | {"require_encryption": True}

    def _try(self, timeout: float) -> None:
        """Say hello once: Dask tries again and again until its time is over, and does not tell why."""
        context = self._context() if self.encrypted else None
        try:
            with socket.create_connection((self.host, self.port), timeout) as plain:
                if context is None:
                    return
                with context.wrap_socket(plain) as secure:
                    secure.recv(1)  # the scheduler speaks first, or says here that it does not accept our certificate
        except ssl.SSLCertVerificationError as error:
            why = f"the certificate of the scheduler {self.address} is not signed by {self.tls['ca_file']}"
            raise SettingsError(f"{why}: {error.verify_message}") from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:  # it ended in the midst of it
            raise UnreachableError(f"the scheduler {self.address} does not answer: {_words(error)}") from error
        except ssl.SSLError as error:
            raise SettingsError(self._refusal(error)) from error
        except OSError as error:
            raise UnreachableError(f"the scheduler {self.address} does not answer: {_words(error)}") from error

    def _refusal(self, error: ssl.SSLError) -> str:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if "alert" in reason:
            return f"the scheduler {self.address} does not accept the certificate {self.tls['client_cert']}: {reason}"
        return f"{self.address} does not speak TLS, or no version that both know: {reason}"

    def _context(self) -> ssl.SSLContext:
        """What Dask uses too: both sides show a certificate of the authority; host names are not looked at."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        try:
            context.load_verify_locations(cafile=self.tls["ca_file"])
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(f"{self.tls['ca_file']} holds no certificates: {_words(error)}") from error
        try:
            context.load_cert_chain(self.tls["client_cert"], self.tls["client_key"])
        except (ssl.SSLError, OSError) as error:
            both = f"{self.tls['client_cert']} and {self.tls['client_key']}"
            raise SettingsError(f"{both} are no certificate and its key: {_words(error)}") from error
        return context


def from_environment() -> Scheduler | None:
    """The scheduler that the environment names; None when it names none.

    Raises SettingsError for an address, a file or a resource that cannot be.
    """
    address = os.environ.get(SCHEDULER)
    if not address:
        return None
    host, port = _place(address)
    tls = _tls_files() if address.startswith("tls://") else {}
    return Scheduler(address, host, port, tls, resources(os.environ.get(RESOURCES, "")))


def _place(address: str) -> tuple[str, int]:
    wrong = f"{SCHEDULER} must be tls://host:port or tcp://host:port, not '{address}'"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(wrong) from None
    if parts.scheme not in ("tls", "tcp") or not host or not port or parts.path.strip("/"):
        raise SettingsError(wrong)
    return host, port


def _tls_files() -> dict[str, str]:
    """The PEM files by Dask's names."""
    import dask.config
    import distributed  # noqa: F401  # which reads its own configuration

    theirs = {
        "ca_file": dask.config.get("distributed.comm.tls.ca-file", None),
        "client_cert": dask.config.get("distributed.comm.tls.client.cert", None),
        "client_key": dask.config.get("distributed.comm.tls.client.key", None),
    }
    found = {name: os.environ.get(variable) or theirs[name] for name, variable in TLS.items()}
    found["client_key"] = found["client_key"] or found["client_cert"]  # a file may hold both
    for name, variable in TLS.items():
        path = found[name]
        if not path:
            raise SettingsError(f"a scheduler at tls:// needs {', '.join(TLS.values())}; {variable} is not set")
        if not os.access(path, os.R_OK) or not Path(path).is_file():
            raise SettingsError(f"{variable}: there is no file {path} that can be read")
    return {name: os.path.abspath(str(path)) for name, path in found.items()}


def resources(text: str) -> dict[str, float]:
    """`GPU=1,memory=8e9` as a mapping. Raises SettingsError for anything else."""
    found = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, amount = item.partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            found[name.strip()] = -1.0
        if not name.strip() or not 0 < found[name.strip()] < float("inf"):
            raise SettingsError(f"{RESOURCES} takes names and amounts above 0 such as GPU=1, not '{item}'")
    return found


def _words(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
