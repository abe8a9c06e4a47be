"""What a host knows of its TPUs: the chips in its slots, and the slice that it belongs to.

The slice is described by variables of the environment where `TPU_SKIP_MDS_QUERY` is set, and by the metadata server of
the cloud's virtual machine otherwise (https://cloud.google.com/compute/docs/metadata/overview). Nothing here uses xla
before it must: launchers ask in the process that starts the others.
"""

from __future__ import annotations

import glob
import operator
import os
import re
import urllib.request
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ..core import xla_env_vars as xenv

_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"

#: Seconds that the metadata server may take. A host that is not in the cloud waits no longer for a name unknown to it.
_PATIENCE_S = 5.0

# the numbers under which chips announce themselves on the PCI bus (https://pci-ids.ucw.cz, vendor 1ae0)
_GOOGLE_PCI_VENDOR_ID = "0x1ae0"
_TPU_PCI_DEVICE_IDS = ["0x0027", "0x005e", "0x0063", "0x006f", "0x0056", "0x0062", "0x0076"]

# hosts along each axis of a slice, for generations whose metadata does not say it
_HOST_BOUNDS = {
    "v2-8": "1,1,1",
    "v2-32": "2,2,1",
    "v2-128": "4,4,1",
    "v2-256": "4,8,1",
    "v2-512": "8,8,1",
    "v3-8": "1,1,1",
    "v3-32": "2,2,1",
    "v3-64": "2,4,1",
    "v3-128": "4,4,1",
    "v3-256": "4,8,1",
    "v3-512": "8,8,1",
    "v3-1024": "8,16,1",
    "v3-2048": "16,16,1",
}


class TpuEnv(TypedDict):
    """The description of a slice, and of this host's place in it; the metadata has more keys."""

    ACCELERATOR_TYPE: str
    TPU_PROCESS_BOUNDS: str
    TPU_CHIPS_PER_PROCESS_BOUNDS: str
    WORKER_ID: str


class MeshShape(NamedTuple):
    """How many processes, or chips, stand along each axis of a slice."""

    x: int
    y: int
    z: int

    @classmethod
    def from_string(cls, mesh: str) -> MeshShape:
        """The shape that `2,2,1` names.

        Raises:
            ValueError: the text has not three integers.
        """
        sizes = [int(size) for size in mesh.split(",")]
        if len(sizes) != 3:
            raise ValueError(f"expected the sizes of three axes, as 2,2,1, got {mesh!r}")
        return cls(*sizes)

    @property
    def size(self) -> int:
        """How many there are together."""
        return reduce(operator.mul, self)

    def __mul__(self, other: Any) -> MeshShape:  # type: ignore[override]
        """The shape of a grid whose points are grids of the other shape."""
        return MeshShape(*(mine * theirs for mine, theirs in zip(self, other, strict=True)))


def num_available_chips() -> int:
    """How many TPU chips are attached to this host."""
    count = 0
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        if Path(vendor).read_text().strip() == _GOOGLE_PCI_VENDOR_ID:
            count += Path(vendor).with_name("device").read_text().strip() in _TPU_PCI_DEVICE_IDS
    return count


def num_logical_cores_per_chip() -> int:
    """How many devices a chip is: two before TPU v4."""
    return 2 if version() <= 3 else 1


def num_available_devices() -> int:
    """How many xla devices this host has, found out without a use of xla in this process.

    Without TPUs, or where `PJRT_DEVICE` chooses another platform, these are the devices of the platform. Libraries take
    the number for that of the devices that their "tpu" accelerator has, and 0 would hide xla from them.
    """
    if os.environ.get(xenv.PJRT_DEVICE, "TPU").upper() == "TPU":
        chips = num_available_chips()
        if chips:
            return chips * num_logical_cores_per_chip()
    from ...platform import discovery

    return discovery.kind_and_count()[1]


def num_expected_global_devices() -> int:
    """How many xla devices the hosts of the slice have together, where each has as many as this one."""
    return num_available_devices() * num_tpu_workers()


def process_bounds_size() -> int | None:
    """How many processes `TPU_PROCESS_BOUNDS` asks for on all hosts; None where it is not set."""
    bounds = os.environ.get(xenv.TPU_PROCESS_BOUNDS)
    return MeshShape.from_string(bounds).size if bounds else None


def num_local_processes() -> int:
    """How many processes this host takes: one for each chip, and no more than all hosts take together."""
    chips, processes = num_available_chips(), process_bounds_size()
    return chips if processes is None else min(chips, processes)


def task_id() -> int | None:
    """The number of this process among those of all TPU hosts (`CLOUD_TPU_TASK_ID`); None where it is not set."""
    found = os.environ.get(xenv.CLOUD_TPU_TASK_ID)
    return int(found) if found else None


def worker_id() -> int:
    """The number of this host among those of the slice."""
    return int(get_tpu_env()["WORKER_ID"])


def get_tpu_env() -> Any:
    """The description of the slice (`TpuEnv`), from the environment or the metadata server.

    Raises:
        OSError: the metadata server does not answer.
    """
    if _is_in_environment():
        return build_tpu_env_from_vars()
    pairs = re.findall(r"^\s*(\w+):\s*(.*?)\s*$", _get_metadata("tpu-env"), re.MULTILINE)
    return {key: value.strip("'\"") for key, value in pairs}


def build_tpu_env_from_vars() -> Any:
    """The description of the slice (`TpuEnv`) by the variables of the environment; None where one is not set."""

    def first(*names: str) -> str | None:
        return next((os.environ[name] for name in names if name in os.environ), None)

    return {
        xenv.ACCELERATOR_TYPE: first(xenv.TPU_ACCELERATOR_TYPE),
        xenv.TPU_PROCESS_BOUNDS: first(xenv.TPU_PROCESS_BOUNDS, xenv.TPU_HOST_BOUNDS),
        xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: first(xenv.TPU_CHIPS_PER_PROCESS_BOUNDS, xenv.TPU_CHIPS_PER_HOST_BOUNDS),
        xenv.WORKER_ID: first(xenv.CLOUD_TPU_TASK_ID, xenv.TPU_WORKER_ID),
    }


def version() -> int:
    """The generation of the slice's chips: 4 for `v4-8`.

    Raises:
        OSError: the metadata server does not answer, or no generation can be read in what it says.
    """
    found = re.match(r"(?:v|tpu)(\d)[A-Za-z]*-\d+$", str(get_tpu_env()[xenv.ACCELERATOR_TYPE]))
    if found is None:
        raise OSError(
            f"expected a type of accelerator as v4-8, got {get_tpu_env()[xenv.ACCELERATOR_TYPE]!r}: "
            "set TPU_ACCELERATOR_TYPE, and TPU_SKIP_MDS_QUERY=1"
        )
    return int(found[1])


def get_tpu_type() -> str:
    """The kind of the slice's chips: `v6e` for `v6e-8`.

    Raises:
        OSError: the metadata server does not answer.
    """
    return str(get_tpu_env()[xenv.ACCELERATOR_TYPE]).partition("-")[0]


def get_worker_ips() -> list[str]:
    """The addresses of the slice's hosts in their order; `localhost` for a single one.

    Raises:
        OSError: the metadata server does not answer.
    """
    if _is_in_environment():
        hosts = os.environ.get(xenv.TPU_WORKER_HOSTNAMES, "").split(",")
    else:  # each is NAME:ID:ADDRESS
        hosts = [each.split(":")[2] for each in _get_metadata("worker-network-endpoints").split(",")]
    return hosts if len(hosts) > 1 else ["localhost"]


def num_tpu_workers() -> int:
    """How many hosts the slice has."""
    return len(get_worker_ips())


def configure_one_chip_topology() -> None:
    """Lets this process see one chip. Call it before the first use of xla; variables that are set stay."""
    _set_defaults(
        {
            xenv.TPU_VISIBLE_CHIPS: "0",
            xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: "1,1,1",
            xenv.TPU_PROCESS_BOUNDS: "1,1,1",
        }
    )


def configure_topology(local_rank: int, local_world_size: int, base_port: int = 8476) -> None:
    """Gives this process one chip of its host's. Call it before the first use of xla; variables that are set stay.

    Args:
        local_rank: the number of the process, and of its chip, on the host.
        local_world_size: how many processes each host has.
        base_port: the first of as many ports that are free on every host.

    Raises:
        OSError: the metadata server does not answer.
    """
    described = get_tpu_env()
    generation = version()
    if generation >= 4:
        hosts = MeshShape.from_string(described[xenv.TPU_PROCESS_BOUNDS])
        chips = MeshShape.from_string(described[xenv.TPU_CHIPS_PER_PROCESS_BOUNDS])
    else:
        hosts, chips = MeshShape.from_string(_HOST_BOUNDS[described[xenv.ACCELERATOR_TYPE]]), MeshShape(2, 2, 1)
    bounds = [*(hosts * chips), *([2] if generation == 7 else [])]  # a chip of v7 is two devices, along a fourth axis
    ports = [base_port + rank for rank in range(local_world_size)]
    _set_defaults(
        {
            xenv.TPU_CHIPS_PER_PROCESS_BOUNDS: "1,1,1",
            xenv.TPU_PROCESS_BOUNDS: ",".join(map(str, bounds)),
            xenv.CLOUD_TPU_TASK_ID: str(int(described[xenv.WORKER_ID]) * local_world_size + local_rank),
            xenv.TPU_PROCESS_ADDRESSES: ",".join(f"{host}:{port}" for host in get_worker_ips() for port in ports),
            xenv.TPU_VISIBLE_CHIPS: str(local_rank),
            xenv.TPU_PROCESS_PORT: str(ports[local_rank]),
        }
    )


def discover_master_worker_ip(use_localhost: bool = True) -> str:
    """The address of the slice's host that has the first rank; `localhost` for a single one.

    Args:
        use_localhost: without it, the address of a single host is that which its name has.

    Raises:
        OSError: the metadata server does not answer.
    """
    hosts = get_worker_ips()
    if len(hosts) == 1 and use_localhost:
        return "localhost"
    if len(hosts) == 1:
        import socket

        return socket.gethostbyname(socket.gethostname())
    from ...processes import process_job

    first = process_job.exchange("tpu.discover_master_worker_ip", str(worker_id()).encode())[0]
    return hosts[int(first)]


def _is_in_environment() -> bool:
    return bool(os.environ.get(xenv.TPU_SKIP_MDS_QUERY))


def _set_defaults(variables: dict[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _get_metadata(key: str) -> str:
    request = urllib.request.Request(_METADATA + key, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return answer.read().decode()
    except OSError as error:
        raise OSError(
            f"the metadata server of the TPU's machine did not tell {key!r}: {error}. Where there is none, set "
            "TPU_SKIP_MDS_QUERY=1 and what libtpu reads in its place (TPU_ACCELERATOR_TYPE, TPU_PROCESS_BOUNDS, ...)"
        ) from error
