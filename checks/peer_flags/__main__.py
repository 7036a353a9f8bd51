"""`python -m checks.peer_flags`: every flag of vLLM and SGLang has a row, and every row a flag.

The flags are read from the wheels of an index with `ast`, without an import; `--vllm WHEEL` and
`--sglang WHEEL` read files instead.
"""

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping

from checks.peer_flags import sglang_flags, vllm_flags
from checks.peer_flags.declarations import DeclaredFlag, find_class
from checks.peer_flags.wheels import read_sources
from specdecode_api.command_line import ArgumentParser
from specdecode_api.peer_flags import Peer, PeerFlag, PeerFlags, Takes, read_peer_flags

SPECULATIVE = "vllm/config/speculative.py"


def compare(table: PeerFlags, declared: Mapping[Peer, Iterable[DeclaredFlag]]) -> Iterator[str]:
    """Yield what the table lacks, and what it has that no peer declares."""
    seen = dict[str, set[Peer]]()
    by_name = {name: row for row in table.flags.values() for name in (row.flag, *row.aliases)}
    for peer, flags in declared.items():
        for flag in flags:
            row = by_name.get(flag.flag)
            if row is None:
                yield f"{flag.flag} of {peer} has no row"
                continue
            seen.setdefault(row.flag, set()).add(peer)
            yield from _differences(row, peer, flag, by_name)
    for name, row in table.flags.items():
        for peer in set(row.peers) - seen.get(name, set()):
            yield f"{name} has a row, but {peer} {table.versions[peer]} does not define it"


def _differences(
    row: PeerFlag, peer: Peer, flag: DeclaredFlag, by_name: Mapping[str, PeerFlag]
) -> Iterator[str]:
    if peer not in row.peers:
        yield f"{flag.flag}: {peer} defines it too"
    for alias in sorted(flag.aliases):
        if by_name.get(alias) is not row:
            yield f"{flag.flag}: the row lacks the alias {alias} of {peer}"
    is_shared = len(row.peers) > 1
    if row.takes is not flag.takes and not is_shared:
        yield f"{flag.flag}: it takes {flag.takes} in {peer}, and {row.takes} in the row"
    if is_shared and (row.takes in SWITCHES) != (flag.takes in SWITCHES):
        yield f"{flag.flag}: whether a value follows differs from {peer}, which has {flag.takes}"


SWITCHES = (Takes.SWITCH, Takes.BOOLEAN)


def compare_keys(table: PeerFlags, declared: set[str]) -> Iterator[str]:
    """Yield keys of --speculative-config without a row, and rows without a key."""
    rows = set(table.speculative_config)
    yield from (f"key {key} of --speculative-config has no row" for key in sorted(declared - rows))
    yield from (f"--speculative-config has no key {key}" for key in sorted(rows - declared))


def speculative_keys(source: str) -> set[str]:
    """Return the fields of vLLM's SpeculativeConfig."""
    node = find_class(ast.parse(source), "SpeculativeConfig")
    return {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def main(arguments: list[str]) -> int:
    """Compare; 1 if anything differs."""
    table = read_peer_flags()
    parser = ArgumentParser(
        prog="python -m checks.peer_flags", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for peer in Peer:
        parser.add_argument(f"--{peer}", default=table.versions[peer], help="version, or a wheel")
    options = vars(parser.parse_args(arguments))
    vllm = read_sources(Peer.VLLM, options[Peer.VLLM], vllm_flags.FILES)
    sglang = read_sources(Peer.SGLANG, options[Peer.SGLANG], sglang_flags.FILES)
    declared = {
        Peer.VLLM: vllm_flags.read_flags(vllm),
        Peer.SGLANG: sglang_flags.read_flags(sglang),
    }
    errors = [
        *compare(table, declared),
        *compare_keys(table, speculative_keys(vllm[SPECULATIVE])),
    ]
    for error in errors:
        print(error)
    for peer, flags in declared.items():
        print(f"{peer} {options[peer]}: {len(flags)} flags")
    print("correct crds/src/specdecode_api/peer_flags.toml" if errors else "every flag has a row")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
