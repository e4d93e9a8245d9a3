"""Sealed values of a deployment's environment variables: stored, sent and shown as text that only the fleet can open."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from sparkfleet.errors import ControlError

PREFIX = "sealed:1:"
"""Beginning of a sealed value, with the version of its form."""

_SETTINGS = (
    "B12X_",
    "CUDA_",
    "CUTE_DSL_",
    "FLASHINFER_",
    "GGML_",
    "GLOO_",
    "HF_HUB_",
    "HOST_IP",
    "LAMPORT_",
    "LLAMA_",
    "MAX_JOBS",
    "NCCL_",
    "NVCC_",
    "NVIDIA_DISABLE_REQUIRE",
    "OMP_",
    "OMPI_",
    "PYTORCH_",
    "RAY_",
    "SAFETENSORS_FAST_GPU",
    "SGLANG_",
    "SGL_",
    "SPARKFLEET_SPIN_S",
    "TLLM_",
    "TORCH",
    "TRITON_",
    "TRT_LLM_",
    "TRTLLM_",
    "UCX_",
    "VLLM_",
)
"""Beginnings of names of engines' and libraries' settings, which rules of the plan read."""
_SECRETS = ("AUTH", "CREDENTIAL", "KEY", "PASS", "SECRET", "TOKEN")


def is_sealed(value: str) -> bool:
    """True for a value that `EnvSealer.seal` returned."""
    return value.startswith(PREFIX)


def is_setting(name: str) -> bool:
    """True for a variable that stays readable: a setting of an engine or a library, by its name.

    Any other value may be a secret.
    """
    return name.startswith(_SETTINGS) and not names_secret(name)


def names_secret(name: str) -> bool:
    """True for a variable whose name is that of a secret. `MAX_TOKENS` and `TOKENIZERS_PARALLELISM` are none."""
    rest = name.replace("MAX_TOKENS", "").replace("TOKENIZER", "")
    return any(word in rest for word in _SECRETS)


class EnvSealer:
    """Seals values with a key of the fleet, and opens them.

    Equal values of one name are sealed to equal texts (AES-SIV, RFC 5297), so that plans can be compared without their
    values. A sealed text is bound to its name: under another name it cannot be opened.

    Args:
        secret: the fleet's engine secret; the key is derived from it (HKDF, SHA-256).
    """

    def __init__(self, secret: bytes) -> None:
        # Not above: commands that seal nothing import this module, too, and the library takes 50 ms.
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        key = HKDF(hashes.SHA256(), length=64, salt=None, info=b"sparkfleet environment").derive(secret)
        self._cipher = AESSIV(key)

    def seal(self, name: str, value: str) -> str:
        """The sealed value; settings and sealed values are returned as they are.

        Raises:
            ControlError: it is sealed already, but not by this fleet or not for this name.
        """
        if is_sealed(value):
            self.open(name, value)
            return value
        if is_setting(name) or not value:
            return value
        sealed = self._cipher.encrypt(value.encode(), [name.encode()])
        return PREFIX + base64.urlsafe_b64encode(sealed).decode()

    def open(self, name: str, value: str) -> str:
        """The value itself; one that is not sealed is returned as it is.

        Raises:
            ControlError: this fleet did not seal it, or not for this name.
        """
        if not is_sealed(value):
            return value
        from cryptography.exceptions import InvalidTag

        try:
            sealed = base64.urlsafe_b64decode(value.removeprefix(PREFIX))
            return self._cipher.decrypt(sealed, [name.encode()]).decode()
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise ControlError(
                f"The value of the environment variable {name} cannot be opened with this fleet's secret.",
                means="It was sealed by another fleet, or before the fleet's secrets were replaced.",
                do="Apply the deployment's file again, with the value itself.",
            ) from error

    def opened(self, pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The same variables with their values. Raises as `open` does."""
        return tuple((name, self.open(name, value)) for name, value in pairs)
