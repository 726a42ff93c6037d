"""What computes, on machines as Linux describes them: folders with the files of real ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from dragoman.core.errors import ModelError
from dragoman.models import cgroups, topology
from dragoman.models.topology import Core, Placement, choose, describe, place, read


def spell(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def machine(
    folder: Path,
    cores: Sequence[Sequence[int]],
    *,
    online: str | None = None,
    packages: int = 1,
    nodes: int = 1,
    cores_of_cache: int | None = None,
    capacity: dict[int, int] | None = None,
    more: dict[str, str] | None = None,
) -> Path:
    """A folder as /sys/devices of a machine: the hardware threads of each core, packages and nodes of equal numbers
    of cores. ``nodes`` 0: without folders of nodes."""
    cpu = folder / "system" / "cpu"
    write(cpu / "online", online or spell(sorted(number for core in cores for number in core)))
    for index, core in enumerate(cores):
        for number in core:
            own = cpu / f"cpu{number}"
            write(own / "topology" / "core_cpus_list", spell(core))
            write(own / "topology" / "physical_package_id", index * packages // len(cores))
            if capacity:
                write(own / "cpu_capacity", capacity[number])
            if cores_of_cache:
                first = index // cores_of_cache * cores_of_cache
                sharing = sorted(n for each in cores[first : first + cores_of_cache] for n in each)
                write(own / "cache" / "index2" / "level", 2)
                write(own / "cache" / "index3" / "level", 3)
                write(own / "cache" / "index3" / "shared_cpu_list", spell(sharing))
    for node in range(nodes):
        own_cores = [core for index, core in enumerate(cores) if index * nodes // len(cores) == node]
        write(
            folder / "system" / "node" / f"node{node}" / "cpulist", spell(sorted(n for core in own_cores for n in core))
        )
    for name, content in (more or {}).items():
        write(folder / name, content)
    return folder


def two_sockets(folder: Path) -> Path:
    """Two Xeon Platinum 8480+: 56 cores each; second hardware threads are numbered after all first ones."""
    cores = [(number, number + 112) for number in range(112)]
    return machine(folder, cores, online="0-223", packages=2, nodes=2, cores_of_cache=56)


def epyc(folder: Path) -> Path:
    """An EPYC 7763 with four nodes in its socket (NPS4): 64 cores, eight of them to a cache."""
    return machine(folder, [(n, n + 64) for n in range(64)], online="0-127", nodes=4, cores_of_cache=8)


def hybrid(folder: Path) -> Path:
    """A Core Ultra 7 155H: six fast cores with two threads, eight efficient ones, two of low power."""
    cores = [(n, n + 1) for n in range(0, 12, 2)] + [(n,) for n in range(12, 22)]
    kinds = {"cpu_core/cpus": "0-11", "cpu_atom/cpus": "12-19", "cpu_lowpower/cpus": "20-21"}
    return machine(folder, cores, online="0-21", cores_of_cache=16, more=kinds)


def big_little(folder: Path) -> Path:
    """An RK3588: four Cortex-A55 and four Cortex-A76."""
    return machine(
        folder, [(n,) for n in range(8)], online="0-7", capacity={n: 530 if n < 4 else 1024 for n in range(8)}
    )


def wsl(folder: Path) -> Path:
    """A Ryzen with eight cores under WSL 2: neighbouring hardware threads, no folders of nodes."""
    return machine(folder, [(n, n + 1) for n in range(0, 16, 2)], online="0-15", nodes=0, cores_of_cache=8)


def test_two_sockets_compute_with_all_cores_once_and_spread_their_memory(tmp_path: Path) -> None:
    found = read(two_sockets(tmp_path))
    assert len(found.cores) == 112
    assert found.cores[60] == Core((60, 172), package=1, node=1)
    assert describe(found) == "112 cores, 224 hardware threads, 2 sockets, 2 last-level caches, 2 memory nodes"
    chosen = choose(found, range(224))
    assert chosen.threads == 112
    assert chosen.processors == tuple(range(112))
    assert chosen.nodes == (0, 1)
    assert str(chosen) == ("112 (one for each physical core of 224 processors, memory spread over 2 nodes)")


def test_a_process_on_one_socket_keeps_its_memory_there(tmp_path: Path) -> None:
    found = read(two_sockets(tmp_path))
    allowed = [*range(56, 112), *range(168, 224)]
    assert choose(found, allowed)[:3] == (56, tuple(range(56, 112)), ())
    assert choose(found, range(224), wanted=cgroups.parse_list("56-111"))[:3] == (56, tuple(range(56, 112)), ())


def test_an_epyc_with_many_caches_and_four_nodes(tmp_path: Path) -> None:
    found = read(epyc(tmp_path))
    assert describe(found) == "64 cores, 128 hardware threads, 1 socket, 8 last-level caches, 4 memory nodes"
    assert choose(found, range(128))[:3] == (64, tuple(range(64)), (0, 1, 2, 3))


def test_efficiency_cores_are_left_out_unless_they_are_asked_for(tmp_path: Path) -> None:
    found = read(hybrid(tmp_path))
    assert describe(found).startswith("16 cores (10 of them for efficiency), 22 hardware threads")
    chosen = choose(found, range(22))
    assert chosen[:3] == (6, (0, 2, 4, 6, 8, 10), ())
    assert chosen.reason == "one for each physical core of 22 processors, without 10 efficiency cores"
    assert choose(found, range(22), wanted=range(22))[:2] == (16, (0, 2, 4, 6, 8, 10, *range(12, 22)))
    assert choose(found, range(22), threads=4)[:2] == (4, (0, 2, 4, 6, 8, 10))
    assert choose(found, range(22), threads=20)[:2] == (20, ())  # more than fast cores: all that there is
    assert choose(found, range(12, 22))[:2] == (10, ())  # there are no others


def test_the_small_cores_of_an_arm_processor_are_left_out(tmp_path: Path) -> None:
    assert choose(read(big_little(tmp_path)), range(8))[:3] == (4, (4, 5, 6, 7), ())


def test_wsl_has_no_nodes(tmp_path: Path) -> None:
    found = read(wsl(tmp_path))
    assert describe(found) == "8 cores, 16 hardware threads, 1 socket, 1 last-level cache, 1 memory node"
    assert choose(found, range(16))[:3] == (8, tuple(range(0, 16, 2)), ())


def test_a_guest_whose_processors_are_all_cores_is_not_tied_to_them(tmp_path: Path) -> None:
    chosen = choose(read(machine(tmp_path, [(0,), (1,)])), range(2))
    assert chosen == Placement(2, reason="one for each core of 2 processors")


def test_where_the_system_says_nothing_each_processor_is_a_core(tmp_path: Path) -> None:
    found = read(tmp_path / "missing")
    assert found.cores == ()
    assert describe(found) == "the system does not describe them"
    assert choose(found, [3, 5])[:3] == (2, (), ())
    write(tmp_path / "system" / "cpu" / "cpu0" / "uevent", "")
    write(tmp_path / "system" / "cpu" / "cpu11" / "uevent", "")
    write(tmp_path / "system" / "cpu" / "cpufreq" / "boost", "1")
    assert read(tmp_path).cores == (Core((0,)), Core((11,)))


@pytest.mark.parametrize("content", ["", "x", "3-1", "0-99999999999", "-1", "0,,1", "\u0661", "20000"])
def test_odd_files_are_as_if_missing(tmp_path: Path, content: str) -> None:
    folder = machine(tmp_path, [(0, 1), (2, 3)], cores_of_cache=2)
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "online":
            path.write_text(content)
    assert [core.processors for core in read(folder).cores] == [(0,), (1,), (2,), (3,)]
    with pytest.raises(ValueError, match="range of processors"):
        cgroups.parse_list(content)


def test_a_processor_that_is_offline_has_no_part(tmp_path: Path) -> None:
    folder = machine(tmp_path, [(0, 2), (1, 3)], online="0-2")
    assert [core.processors for core in read(folder).cores] == [(0, 2), (1,)]


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (0.5, 1), (1.0, 1), (1.5, 2), (2.2, 2), (3.0, 3), (64.0, 8)])
def test_threads_follow_the_quota_of_processor_time(tmp_path: Path, quota: float | None, threads: int) -> None:
    found = choose(read(wsl(tmp_path)), range(16), quota)
    assert found.threads == threads
    if threads < 8:
        assert found.reason == f"a quota of {quota:g} processors"
    assert choose(read(wsl(tmp_path)), range(16), quota, threads=12).threads == 12


def put_in_groups(folder: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str]) -> None:
    for name, content in files.items():
        write(folder / "tree" / name, content)
    (folder / "membership").write_text(membership)
    monkeypatch.setattr(cgroups, "ROOT", folder / "tree")
    monkeypatch.setattr(cgroups, "MEMBERSHIP", folder / "membership")


@pytest.mark.parametrize(
    ("membership", "files", "threads", "processors"),
    [
        ("0::/pod\n", {"pod/cpu.max": "150000 100000"}, 2, tuple(range(0, 16, 2))),
        ("0::/pod\n", {"pod/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3, tuple(range(0, 16, 2))),
        ("0::/pod\n", {"pod/cpuset.cpus.effective": "0-3,12"}, 3, (0, 2, 12)),
        ("0::/pod\n", {"pod/cpuset.cpus.effective": ""}, 8, tuple(range(0, 16, 2))),
        (
            "3:cpuset:/a\n2:cpu,cpuacct:/a\n0::/\n",
            {
                "cpuset/a/cpuset.effective_cpus": "8-15",
                "cpu,cpuacct/x": "",
                "cpu/a/cpu.cfs_quota_us": "150000",
                "cpu/a/cpu.cfs_period_us": "100000",
            },
            2,
            (8, 10, 12, 14),
        ),
        ("0::/gone\n", {"x": ""}, 8, tuple(range(0, 16, 2))),
    ],
)
def test_the_groups_of_a_container_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    membership: str,
    files: dict[str, str],
    threads: int,
    processors: tuple[int, ...],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    put_in_groups(tmp_path, monkeypatch, membership, files)
    assert place(system=wsl(tmp_path / "devices"))[:2] == (threads, processors)


def test_processors_that_are_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    put_in_groups(tmp_path, monkeypatch, "", {"x": ""})
    folder = wsl(tmp_path / "devices")
    assert place(None, "0,2", folder)[:2] == (2, (0, 2))
    with pytest.raises(ModelError, match=r"--cpus: this process may not use 3-4; it may use 0-2,5"):
        place(None, "2-4", folder)
    for text in ("", "a", "1-", "4-2", "1;2", "0x1"):
        with pytest.raises(ModelError, match="a list such as 0-15,32"):
            place(None, text, folder)


def test_macos_counts_its_fast_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    numbers = {"hw.perflevel0.physicalcpu": 8, "hw.physicalcpu": 10}  # an M1 Max
    monkeypatch.setattr(topology, "_system_number", numbers.get)
    assert str(place()) == "8 (one for each physical core of 10 processors, without 2 efficiency cores)"
    assert place(3).threads == 3
    numbers = {"hw.physicalcpu": 4}  # of Intel
    monkeypatch.setattr(topology, "_system_number", numbers.get)
    assert str(place()) == "4 (one for each core of 10 processors)"
    monkeypatch.setattr(topology, "_system_number", lambda _: None)
    assert place().threads == 10
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ModelError, match="does not tie"):
        place(None, "0")


def test_this_machine_is_described_and_computes() -> None:
    found = place()
    assert 1 <= found.threads <= len(os.sched_getaffinity(0))
    assert set(found.processors) <= os.sched_getaffinity(0)
