"""Files of weights on the Hugging Face hub: hf:OWNER/REPOSITORY/FILE, kept in the cache of Hugging Face."""

from __future__ import annotations

from pathlib import Path

from pdpgd import extras
from pdpgd.errors import FOREIGN_ERRORS, InvalidInputError, SubjectError

PREFIX = "hf:"


def weights_file(weights: str | Path) -> Path:
    """The file on this machine; one on the hub is downloaded unless the cache has it.

    Args:
        weights: A path, or `hf:OWNER/REPOSITORY/FILE`.

    Raises:
        SubjectError: The file is not in the cache and cannot be downloaded; the message says how to get it.
    """
    source = str(weights)
    if not source.startswith(PREFIX):
        return Path(weights)
    owner, _, rest = source.removeprefix(PREFIX).partition("/")
    repository, _, file = rest.partition("/")
    if not owner or not repository or not file:
        raise InvalidInputError(f"weights: expected hf:OWNER/REPOSITORY/FILE, got {source!r}")
    purpose = f"weights from the Hugging Face hub ({source})"
    hub = extras.need("huggingface_hub", extra="timm", purpose=purpose)
    constants = extras.need("huggingface_hub.constants", extra="timm", purpose=purpose)
    try:
        return Path(hub.hf_hub_download(f"{owner}/{repository}", file))
    except FOREIGN_ERRORS as error:  # offline, refused, or not there: each in a class of its own
        raise SubjectError(
            f"{source}: expected a file in the cache of Hugging Face ({constants.HF_HUB_CACHE}) or on its hub, got "
            f"{type(error).__name__}; where there is a network, `hf download {owner}/{repository} {file}` puts it into "
            "the cache, which can be copied to a machine that has none"
        ) from error
